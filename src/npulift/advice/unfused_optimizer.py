"""ADV013 unfused-optimizer: the optimizer runs a kernel or more for each parameter.

ApplyAdamW and its kin, or the sequence of Mul, Addcmul, Sqrt, Addcdiv, run once a parameter; clipping by norm adds several small kernels a parameter. torch_npu's fused
optimizers put parameters into one buffer and update it at once.
Threshold: over 16 single-parameter updates a step (or as many norms), since below that the launches do not matter.
Saving: the launches and gaps between them, taken as the waits before these kernels; the arithmetic itself remains.
Change: torch_npu.optim.NpuFusedAdamW with clip_grad_norm_fused_, or AdamW(..., fused=True).
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, percent, us

CODE = "ADV013"
NAME = "unfused-optimizer"

_UPDATES = r"^(Apply(Adam|Momentum|RMSProp|Adagrad|Gradient|KerasMomentum|Adamax|Adadelta|Lamb|Ftrl)\w*|LambNextMV\w*|SGD|FusedSgd)$"
_NORMS = r"^(LpNormReduce\w*|LpNormUpdate\w*|LpNorm\w*|L2Loss|SquareSumV\d)$"


def find(view: View) -> Iterator[Finding]:
    """Updates and norms by type, a step."""
    updates = view.by_type.filter(pl.col("type").str.contains(_UPDATES))
    norms = view.by_type.filter(pl.col("type").str.contains(_NORMS))
    ranks = max(1, len(view.evidence.ranks))
    count, norm_count = (int(t["count"].sum() or 0) / view.step_count / ranks for t in (updates, norms))
    if max(count, norm_count) <= 16:
        return
    total = int(updates["total_ns"].sum() or 0) + int(norms["total_ns"].sum() or 0)
    which = pl.col("type").str.contains(_UPDATES) | pl.col("type").str.contains(_NORMS)
    waits = float(view.kernels.filter(which)["wait_ns"].fill_null(0).clip(0).sum()) if view.kernels.height else 0.0
    names = ", ".join(f"{r['type']} x{r['count']}" for r in [*updates.iter_rows(named=True), *norms.iter_rows(named=True)][:4])
    saved = min(waits, view.split["free"]) if view.has_timeline else 0.0
    yield found(
        view, (CODE, NAME), Severity.WARNING,
        _("The optimizer is not fused: {names}, a kernel for each parameter. They take {part} us ({share} % of the device's time), and {waits} us pass in the gaps before them.").format(
            names=names, part=us(total), share=percent(total / view.kernel_ns if view.kernel_ns else 0), waits=us(waits)),
        _("Use torch_npu.optim.NpuFusedAdamW (or another NpuFused optimizer) with its clip_grad_norm_fused_, which update all parameters in a few kernels."),
        saved=saved, share=total / view.kernel_ns if view.kernel_ns else None,
        details={"updates_per_step": count, "norms_per_step": norm_count, "us": round(total / 1e3, 3), "gap_us": round(waits / 1e3, 3), "types": [*updates.to_dicts(), *norms.to_dicts()]},
    )
