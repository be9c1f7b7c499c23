"""ADV072 contention: matrix products and collectives slow each other down.

A collective over HCCS or SDMA reads and writes the same memory as the products beside it. When both are limited by memory, each takes longer.
Threshold: collectives that overlap with kernels run at under 60 % of the bandwidth of those of the same size without, at least 3 of each.
Saving: the difference, for the overlapped ones.
Change: overlap with compute that is not limited by memory, or give up the overlap of that pair.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found

CODE = "ADV072"
NAME = "contention"


def find(view: View) -> Iterator[Finding]:
    """Collectives of one name and size, with and without kernels beside them."""
    speeds = view.table("transports").filter(pl.col("bandwidth_gbs") > 0)
    times = view.table("collectives").filter(pl.col("start_us").is_not_null())
    products = view.kernels.filter(pl.col("type").fill_null("").str.contains("MatMul|Conv|Attention"))
    if speeds.height < 6 or times.is_empty() or products.is_empty():
        return
    joined = speeds.join(times.select("rank", "step", "name", "group", "start_us", "elapse_ms"), on=["rank", "step", "name", "group"], nulls_equal=True)
    if joined.is_empty():
        return
    starts = products["start_ns"].to_numpy()
    ends = np.maximum.accumulate(starts + products["duration_ns"].to_numpy())
    from_ = (joined["start_us"].to_numpy() * 1e3).astype(np.int64)
    to = from_ + (joined["elapse_ms"].fill_null(0).to_numpy() * 1e6).astype(np.int64)
    first = np.searchsorted(ends, from_, side="right")
    last = np.searchsorted(starts, to, side="left")
    joined = joined.with_columns(overlapped=pl.Series(last > first), size=pl.col("size_mb").round(1), kind=pl.col("name").str.extract(r"^(hcom_[A-Za-z]+|[A-Za-z]+)"))
    table = joined.group_by("kind", "size", "transport").agg(
        beside=pl.col("bandwidth_gbs").filter(pl.col("overlapped")).median(), alone=pl.col("bandwidth_gbs").filter(~pl.col("overlapped")).median(),
        n=pl.col("overlapped").sum(), m=(~pl.col("overlapped")).sum(), ms=pl.col("time_ms").filter(pl.col("overlapped")).sum()).filter(
        (pl.col("n") >= 3) & (pl.col("m") >= 3) & (pl.col("beside") < 0.6 * pl.col("alone"))).sort("ms", descending=True)
    if table.is_empty():
        return
    top = table.row(0, named=True)
    yield found(
        view, (CODE, NAME), Severity.WARNING,
        _("{kind} of {size} MB runs at {beside} GB/s beside matrix products and at {alone} GB/s alone: they compete for memory bandwidth.").format(
            kind=top["kind"], size=top["size"], beside=f"{top['beside']:.2f}", alone=f"{top['alone']:.2f}"),
        _("Let this collective run beside kernels that are not limited by memory, split it, or compare the step with the overlap turned off."), details={"pairs": table.head(10).to_dicts()},
    )
