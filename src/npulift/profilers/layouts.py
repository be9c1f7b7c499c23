"""Which TransData converts an activation, which a weight, and what stands beside it."""

from __future__ import annotations

import polars as pl

_WEIGHT = r"^FRACTAL_(NZ|Z|Z_3D|Z_G)$"
_PLAIN = r"^(ND|NCHW|NHWC|HWCN|NCDHW|NDHWC|DHWCN)$"


def _first(column: str) -> pl.Expr:
    return pl.col(column).fill_null("").str.split(";").list.first().fill_null("")


def weight() -> pl.Expr:
    """From a plain format into one that weights are kept in; a two- or four-dimensional operand. FRACTAL_NZ of three or more dimensions with a batch is an activation."""
    into = _first("output_formats").str.contains(_WEIGHT) & _first("input_formats").str.contains(_PLAIN)
    rank = _first("input_shapes").str.count_matches(",") + 1
    return (pl.col("type") == "TransData") & into & ((rank <= 2) | _first("output_formats").str.contains("FRACTAL_Z") | (_first("input_shapes") == ""))


def activation() -> pl.Expr:
    """Every other conversion."""
    return (pl.col("type") == "TransData") & ~weight()


def neighbours(kernels: pl.DataFrame, which: pl.Expr, after_only: bool = False, most: int = 4) -> list[str]:
    """Names of the kernels beside those that `which` selects (the ones that are no conversion), the most frequent first."""
    frame = kernels.with_columns(hit=which.fill_null(False))
    name = pl.when(pl.col("type") != "TransData").then(pl.col("name"))
    parts = [frame.select(n=name, h=pl.col("hit").shift(1))]
    if not after_only:
        parts.append(frame.select(n=name, h=pl.col("hit").shift(-1)))
    near = pl.concat(parts).filter(pl.col("h").fill_null(False) & pl.col("n").is_not_null())
    moved = near.filter(~pl.col("n").str.contains("(?i)permute|transpose|reshape|cast"))
    near = moved if moved.height else near
    return near.group_by("n").len().sort("len", "n", descending=[True, False])["n"].head(most).to_list()
