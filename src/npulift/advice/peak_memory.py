"""ADV051 peak-memory: what holds memory at its peak.

Which operators' outputs live at the moment of the highest allocation.
Threshold: information whenever allocations were recorded and their peak is over 1 GB; a warning when the device's reserved total is within 5 % of the device's size, where it is known.
Saving: memory.
Change: activation checkpointing, smaller micro-batches, fused attention, ZeRO.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found

CODE = "ADV051"
NAME = "peak-memory"


def find(view: View) -> Iterator[Finding]:
    """Live allocations at the peak, by operator."""
    table = view.table("allocations").filter(pl.col("allocated_at_us").is_not_null() & pl.col("total_allocated_mb").is_not_null())
    if table.is_empty():
        return
    peak = table.sort("total_allocated_mb", descending=True).row(0, named=True)
    if peak["total_allocated_mb"] < 1024:
        return
    now = peak["allocated_at_us"]
    live = table.filter((pl.col("allocated_at_us") <= now) & (pl.col("released_at_us").is_null() | (pl.col("released_at_us") > now)))
    holders = live.group_by("name").agg(mb=pl.col("size_mb").sum(), count=pl.len()).sort("mb", descending=True)
    known = float(holders["mb"].sum())
    yield found(
        view, (CODE, NAME), Severity.INFO,
        _("The peak is {peak} MB, reached in {name}. Of the blocks made in the recorded window the largest holders are {what}; {before} MB were there before it.").format(
            peak=f"{peak['total_allocated_mb']:.1f}", name=peak["name"], what=", ".join(f"{r['name']} {r['mb']:.1f} MB" for r in holders.head(4).iter_rows(named=True)),
            before=f"{max(0.0, peak['total_allocated_mb'] - known):.1f}"),
        _("Checkpoint the layers whose activations these are, split the batch, use fused attention; npulift simulate tells the peak without a card."),
        details={"peak_mb": peak["total_allocated_mb"], "operator": peak["name"], "holders": holders.head(15).to_dicts()},
    )
