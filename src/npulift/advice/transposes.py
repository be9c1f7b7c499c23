"""ADV007 transposes: transposed copies take much of the time.

A Transpose (permute followed by contiguous, or a layout that an operator wants) only moves data; matrix products take transposed operands as they are.
Threshold: over 5 % of kernel time (a warning from 10 %); attention and convolutions need a few.
Saving: those whose consumer can take the strides.
Change: leave out .contiguous() before matmul, use npu_fusion_attention with input_layout 'BSH' or 'BSND', permute weights once at load.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, percent, us

CODE = "ADV007"
NAME = "transposes"


def find(view: View) -> Iterator[Finding]:
    """By type, with the most costly shapes."""
    which = pl.col("type").fill_null("").str.contains(r"^(Transpose|TransposeD|Permute|AsStrided|ViewCopy|Contiguous)")
    total = int(view.by_type.filter(which)["total_ns"].sum() or 0)
    if total < 0.05 * view.kernel_ns or not total:
        return
    rows = view.kernels.filter(which)
    shapes = rows.group_by("type", "input_shapes").agg(count=pl.len(), ns=pl.col("duration_ns").sum()).sort("ns", descending=True)
    yield found(
        view, (CODE, NAME), Severity.WARNING if total >= 0.1 * view.kernel_ns else Severity.INFO,
        _("Transposed and strided copies take {share} % of the device's time ({part} us); the most costly: {what}.").format(
            share=percent(total / view.kernel_ns), part=us(total),
            what=", ".join(f"{r['type']} [{r['input_shapes']}] x{r['count']}" for r in shapes.head(3).iter_rows(named=True)) or "-"),
        _("Drop .contiguous() before matmul and bmm (they take transposed operands), give fused attention its inputs in the layout that they have (input_layout 'BSH', 'BSND'), and permute weights once at load."),
        saved=view.saved_ns((pl.col("category") == "kernel") & which) if rows.height else total, share=total / view.kernel_ns, details={"us": round(total / 1e3, 3), "shapes": shapes.head(10).to_dicts()},
    )
