"""ADV012 unfused-norm: normalisation runs as single kernels.

Square or Pow, ReduceMean, Add, Rsqrt, Mul: an RMS norm (or a layer norm) by hand is five or more passes over the activation; the fused operator is one.
Threshold: at least 2 sequences of square, mean and reciprocal square root within 8 kernels, which take over 2 % of kernel time.
Saving: four fifths of their time; an estimate by passes over memory.
Change: torch_npu.npu_rms_norm, F.rms_norm or F.layer_norm.
"""

from __future__ import annotations

from collections.abc import Iterator

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, percent, us

CODE = "ADV012"
NAME = "unfused-norm"


def find(view: View) -> Iterator[Finding]:
    """Square, reduction, reciprocal root, next to each other on operands of some size."""
    kernels = view.kernels
    types = kernels["type"].fill_null("").to_list()[:2_000_000]
    roots = [i for i, t in enumerate(types) if t in ("Rsqrt", "Reciprocal", "Sqrt")]
    hits = []
    for r in roots:
        window = types[max(0, r - 6): r]
        squares = [i for i, t in enumerate(window) if t in ("Square", "Pow", "Pows", "Mul") or t.startswith("Pow")]
        means = [i for i, t in enumerate(window) if t.startswith("ReduceMean") or t.startswith("Mean")]
        if squares and means and squares[0] < means[-1]:
            start = max(0, r - 6) + squares[0]
            hits.append((start, min(len(types) - 1, r + 2)))
    if len(hits) < 2:
        return
    durations = kernels["duration_ns"].to_list()
    total = sum(sum(durations[a: b + 1]) for a, b in hits)
    if total < 0.02 * view.kernel_ns:
        return
    saved = 0.8 * total
    a, b = hits[0]
    yield found(
        view, (CODE, NAME), Severity.WARNING,
        _("A normalisation runs as single kernels {n} times ({chain}): {share} % of the device's time ({part} us).").format(
            n=len(hits), chain=" -> ".join(dict.fromkeys(types[a: b + 1])), share=percent(total / view.kernel_ns), part=us(total)),
        _("Use torch_npu.npu_rms_norm (or F.rms_norm, F.layer_norm): one pass over the data instead of five."),
        saved=saved, share=saved / view.kernel_ns, details={"times": len(hits), "us": round(total / 1e3, 3), "estimate": True},
    )
