"""ADV017 memory-bound: vector kernels wait for memory.

An element-wise kernel moves far more bytes than it computes; the only cure is to move fewer.
Threshold: AI_VECTOR_CORE kernels over 10 us whose transfer unit is busy over 80 % of the time take over 30 % of kernel time: information, since each may be as fast as it can be.
Saving: with one fused kernel for every two, half of it; an estimate.
Change: fusion, lower precision, in-place operators, fewer passes.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, percent

CODE = "ADV017"
NAME = "memory-bound"


def find(view: View) -> Iterator[Finding]:
    """By type."""
    low = view.kernels.filter((pl.col("device") == "AI_VECTOR_CORE") & (pl.col("transfer_ratio") > 0.8) & (pl.col("duration_ns") > 10_000))
    total = int(low["duration_ns"].sum() or 0)
    if not total or total < 0.3 * view.kernel_ns or low.height < 3:
        return
    types = low.group_by("type").agg(count=pl.len(), ns=pl.col("duration_ns").sum()).sort("ns", descending=True)
    yield found(
        view, (CODE, NAME), Severity.INFO,
        _("{share} % of the device's time goes to vector kernels that are limited by memory bandwidth: {what}.").format(
            share=percent(total / view.kernel_ns), what=", ".join(f"{r['type']} x{r['count']}" for r in types.head(5).iter_rows(named=True))),
        _("Move fewer bytes: fuse neighbours, use bfloat16 or float16, update in place."),
        saved=0.5 * total, share=0.5 * total / view.kernel_ns, details={"types": types.head(10).to_dicts(), "estimate": True},
    )
