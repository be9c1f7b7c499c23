"""ADV011 unfused-attention: attention runs as separate products and a softmax.

Batched product, scale, mask, softmax, dropout, batched product: the score matrix of sequence length squared goes through memory up to six times. The fused kernel keeps it on the chip.
Threshold: at least 2 sequences of a batched product, a softmax within 8 kernels and a batched product, which take over 3 % of kernel time.
Saving: about half of their time (the products remain), more for long sequences; an estimate.
Change: F.scaled_dot_product_attention, which torch_npu sends to FlashAttentionScore, or torch_npu.npu_fusion_attention.
"""

from __future__ import annotations

from collections.abc import Iterator

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, percent, us

CODE = "ADV011"
NAME = "unfused-attention"


def find(view: View) -> Iterator[Finding]:
    """Product, softmax, product, next to each other."""
    kernels = view.kernels
    types = kernels["type"].fill_null("").to_list()
    if len(types) > 2_000_000:
        types = types[:2_000_000]
    products = [i for i, t in enumerate(types) if t.startswith(("BatchMatMul", "BatchMatMulV"))]
    softmaxes = [i for i, t in enumerate(types) if "Softmax" in t and "Grad" not in t and "Cross" not in t and "Log" not in t]
    hits = []
    before = after = 0
    for s in softmaxes:
        while before < len(products) and products[before] < s:
            before += 1
        after = before
        if before and after < len(products) and s - products[before - 1] <= 8 and products[after] - s <= 8:
            hits.append((products[before - 1], products[after]))
    if len(hits) < 2:
        return
    durations = kernels["duration_ns"].to_list()
    total = sum(sum(durations[a: b + 1]) for a, b in hits)
    if total < 0.03 * view.kernel_ns:
        return
    a, b = hits[0]
    shape = kernels["input_shapes"][a] or "-"
    saved = 0.5 * total
    yield found(
        view, (CODE, NAME), Severity.WARNING,
        _("Attention runs unfused {n} times ({chain}; [{shape}]): {share} % of the device's time ({part} us).").format(
            n=len(hits), chain=" -> ".join(dict.fromkeys(types[a: b + 1])), shape=shape, share=percent(total / view.kernel_ns), part=us(total)),
        _("Use F.scaled_dot_product_attention (torch_npu runs it as FlashAttentionScore) or torch_npu.npu_fusion_attention. About half of the time is saved, by estimate."),
        saved=saved, share=saved / view.kernel_ns, details={"times": len(hits), "us": round(total / 1e3, 3), "shapes": shape, "estimate": True},
    )
