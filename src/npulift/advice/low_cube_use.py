"""ADV015 low-cube-use: matrix products leave the cube unit idle.

The share of its time in which the matrix unit works is what a product's shape, tiling and memory traffic allow.
Threshold: products that take over 5 % of kernel time together, each over 20 us long, work the cube under 50 % of the time (large, aligned products reach 80 to 95 %; source: public
910B captures), a warning from 20 % of kernel time.
Saving: what 80 % use would save: 1 - use / 0.8 of their time.
Change: align inner dimensions to 16 elements (better 256 bytes), merge small products, larger batch, weights in FRACTAL_NZ on chips that want it.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, percent

CODE = "ADV015"
NAME = "low-cube-use"


def find(view: View) -> Iterator[Finding]:
    """Products by shape."""
    which = pl.col("type").fill_null("").str.contains(r"MatMul|Gemm|^Conv|FlashAttention|GroupedMatmul|Linear") & (pl.col("duration_ns") > 20_000) & pl.col("cube_ratio").is_not_null()
    rows = view.kernels.filter(which & (pl.col("cube_ratio") > 0))
    low = rows.filter(pl.col("cube_ratio") < 0.5)
    total = int(low["duration_ns"].sum() or 0)
    if not total or total < 0.05 * view.kernel_ns:
        return
    shapes = low.group_by("type", "input_shapes", "cores").agg(count=pl.len(), ns=pl.col("duration_ns").sum(), use=pl.col("cube_ratio").mean(), transfer=pl.col("transfer_ratio").mean()).sort("ns", descending=True)
    saved = float((low["duration_ns"] * (1 - low["cube_ratio"] / 0.8).clip(0, 1)).sum())
    top = shapes.row(0, named=True)
    bound = _("it waits for data") if (top["transfer"] or 0) > 0.7 else _("neither data nor arithmetic keeps it busy")
    yield found(
        view, (CODE, NAME), Severity.WARNING if total >= 0.2 * view.kernel_ns else Severity.INFO,
        _("Matrix products that take {share} % of the device's time work the cube unit under half of theirs; the worst: {type} [{shape}] x{count}, cube busy {use} % ({bound}).").format(
            share=percent(total / view.kernel_ns), type=top["type"], shape=top["input_shapes"] or "-", count=top["count"], use=percent(top["use"]), bound=bound),
        _("Align the inner dimensions to multiples of 16 elements (better 256 bytes), merge products with a shared operand (q, k and v in one), raise the batch, or keep weights in FRACTAL_NZ."),
        saved=saved, share=saved / view.kernel_ns, details={"us": round(total / 1e3, 3), "shapes": shapes.head(10).to_dicts(), "estimate": True},
    )
