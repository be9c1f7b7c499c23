"""ADV016 few-blocks: long kernels use only some of the cores.

A kernel is cut into blocks, one a core; with fewer blocks than cores the rest stand idle.
Threshold: kernels over 50 us long that use under half as many blocks as the most that any kernel of the same core type used here, together over 5 % of kernel time.
Saving: at equal efficiency, 1 - blocks / cores of their time; an upper bound, since small shapes do not split.
Change: larger or merged shapes; for kernels of your own, more blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, percent

CODE = "ADV016"
NAME = "few-blocks"


def find(view: View) -> Iterator[Finding]:
    """By core type and shape."""
    rows = view.kernels.filter((pl.col("cores") > 0) & pl.col("device").is_in(["AI_CORE", "AI_VECTOR_CORE", "MIX_AIC", "MIX_AIV"]))
    if rows.height < 10:
        return
    rows = rows.with_columns(most=pl.col("cores").max().over("device"))
    low = rows.filter((pl.col("duration_ns") > 50_000) & (pl.col("cores") * 2 < pl.col("most")))
    total = int(low["duration_ns"].sum() or 0)
    if not total or total < 0.05 * view.kernel_ns:
        return
    saved = float((low["duration_ns"] * (1 - low["cores"] / low["most"])).sum())
    shapes = low.group_by("type", "input_shapes", "cores", "most").agg(count=pl.len(), ns=pl.col("duration_ns").sum()).sort("ns", descending=True)
    top = shapes.row(0, named=True)
    yield found(
        view, (CODE, NAME), Severity.WARNING,
        _("Kernels that take {share} % of the device's time use under half of the cores; the longest: {type} [{shape}] on {cores} of {most}.").format(
            share=percent(total / view.kernel_ns), type=top["type"], shape=top["input_shapes"] or "-", cores=top["cores"], most=top["most"]),
        _("Give them more to split: a larger batch, merged heads or experts, a dimension that is a multiple of the core count; for a kernel of your own raise the block count."),
        saved=saved, share=saved / view.kernel_ns, details={"shapes": shapes.head(10).to_dicts(), "upper_bound": True},
    )
