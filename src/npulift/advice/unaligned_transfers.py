"""ADV071 unaligned-transfers: collectives of a size that is no multiple of 512 bytes.

The engines copy in lines of 512 bytes; other sizes take slower paths on some links.
Threshold: over 10 % of the bytes over SDMA or HCCS are in packets over 64 KB whose size is no multiple of 512 bytes.
Saving: not estimated.
Change: pad the tensor, or the bucket.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, percent

CODE = "ADV071"
NAME = "unaligned-transfers"


def find(view: View) -> Iterator[Finding]:
    """By packet size; the files give decimal megabytes with six places."""
    rows = view.table("packets").filter(pl.col("transport").is_in(["SDMA", "HCCS"]) & (pl.col("packet_mb") > 0.065))
    if rows.is_empty():
        return
    rows = rows.with_columns(bytes=(pl.col("packet_mb") * 1e6).round(0).cast(pl.Int64), volume=pl.col("packet_mb") * pl.col("count"))
    # six places after the point: the last digit is one byte, so a rounded size still tells
    odd = rows.filter((pl.col("bytes") % 512 != 0) & ((pl.col("packet_mb") * 1e6 - pl.col("bytes")).abs() < 1e-3) & ((pl.col("packet_mb") * 2**20 % 512) != 0))
    whole, bad = float(rows["volume"].sum()), float(odd["volume"].sum())
    if not whole or bad < 0.1 * whole:
        return
    worst = odd.sort("volume", descending=True).row(0, named=True)
    yield found(
        view, (CODE, NAME), Severity.INFO,
        _("{share} % of the bytes over {transport} go in packets whose size is no multiple of 512 bytes, such as {bytes} bytes x{count}.").format(
            share=percent(bad / whole), transport=worst["transport"], bytes=worst["bytes"], count=worst["count"]),
        _("Pad the tensors of that collective (or the bucket) to a multiple of 512 bytes."), details={"sizes": odd.select("name", "bytes", "count").head(10).to_dicts()},
    )
