"""NPU147 attention-form: in which form attention should reach the compiler.

Why it matters: from ONNX opset 23 on torch exports scaled_dot_product_attention as one Attention node. Qualcomm's execution provider did not claim that node, so it ran on
the CPU (onnxruntime-qnn issue 646); there MatMul and Softmax are right. Ascend wants the opposite: kept whole it becomes npu_fusion_attention.
Qualcomm:  npulift export --form decomposed (opset 20), which the qnn target does by itself
Ascend:    keep F.scaled_dot_product_attention, or call torch_npu.npu_fusion_attention
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache

import torch

from npulift.capture import Capture, Op
from npulift.errors import NpuliftError
from npulift.findings import Finding, Severity
from npulift.messages import _, ngettext
from npulift.rules.families import family
from npulift.targets.base import Target

CODE = "NPU147"
NAME = "attention-form"


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for the model, for Qualcomm and for Ascend: their advice is opposite."""
    kind = family(target)
    ops = [o for o in capture.exported_ops if o.base == "aten::scaled_dot_product_attention"]
    if not ops or kind not in ("qnn", "ascend"):
        return
    n = len(ops)
    if kind == "ascend":
        yield Finding(
            CODE, NAME, Severity.INFO,
            ngettext("{n} aten::scaled_dot_product_attention: keep it whole for Ascend, where it becomes one fused kernel (npu_fusion_attention).",
                     "{n} aten::scaled_dot_product_attention: keep them whole for Ascend, where each becomes one fused kernel (npu_fusion_attention).", n).format(n=n),
            ops[0].location, ops[0].module,
            _("Do not decompose it before Ascend; torch_npu.npu_fusion_attention takes it directly (its bool mask is inverted: True hides)."),
            details={"places": n, "advice": "keep-fused"},
        )
        return
    whole, parts = _forms(ops[0])
    yield Finding(
        CODE, NAME, Severity.INFO,
        ngettext("{n} aten::scaled_dot_product_attention: as the ONNX operator Attention (opset 23 and later) it was not claimed by Qualcomm's provider and ran on the CPU.",
                 "{n} aten::scaled_dot_product_attention: as the ONNX operator Attention (opset 23 and later) they were not claimed by Qualcomm's provider and ran on the CPU.",
                 n).format(n=n),
        ops[0].location, ops[0].module,
        _("Export it decomposed, at opset 20 as npulift does for this target: {parts} (instead of {whole}).").format(parts=_listed(parts), whole=_listed(whole) or "Attention"),
        details={"places": n, "advice": "decompose", "operators_after": parts, "operators_fused": whole},
    )


def _listed(kinds: dict[str, int]) -> str:
    return ", ".join(f"{n} {k}" if n > 1 else k for k, n in kinds.items())


def _forms(op: Op) -> tuple[dict[str, int], dict[str, int]]:
    # Operands that are one and the same tensor (self-attention without projections) are listed once.
    sizes = tuple(tuple(s if isinstance(s, int) else 8 for s in t.shape) for t in (op.inputs * 3 if len(op.inputs) < 3 or len(op.inputs[2].shape) != len(op.inputs[0].shape) else op.inputs)[:3])
    if len({size[-1] for size in sizes}) > 1:
        sizes = (sizes[0],) * 3
    return _exported(sizes, op.scalars.get("is_causal") == "True")


@cache
def _exported(sizes: tuple[tuple[int, ...], ...], causal: bool) -> tuple[dict[str, int], dict[str, int]]:
    """ONNX operators of attention of this size at opset 23 and at opset 20, by really exporting it."""
    from npulift.onnx_export import to_onnx

    class Attention(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    program = torch.export.export(Attention(), tuple(torch.zeros(s) for s in sizes))
    found: list[dict[str, int]] = []
    for opset in (23, 20):
        try:
            model, _program = to_onnx(program, opset)
        except NpuliftError:
            found.append({})
            continue
        found.append(dict(Counter(n.op_type for n in model.graph.node if n.op_type not in ("Constant", "Identity"))))
    return found[0], found[1]
