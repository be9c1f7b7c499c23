"""ADV050 fragmentation: the allocator holds far more memory than tensors use.

Blocks that are free but too small or too scattered cannot serve a new tensor, so the allocator asks the device for more, until there is none.
Threshold: at the peak, reserved memory exceeds allocated memory by over 30 % and 2 GB, which exceeds what caching for the next step needs.
Saving: memory, not time.
Change: PYTORCH_NPU_ALLOC_CONF=expandable_segments:True, or max_split_size_mb; fewer different shapes.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, percent

CODE = "ADV050"
NAME = "fragmentation"


def find(view: View) -> Iterator[Finding]:
    """From memory_record, the framework's component."""
    table = view.table("memory").filter(pl.col("allocated_mb").is_not_null() & pl.col("reserved_mb").is_not_null() & pl.col("component").is_in(["PTA", "PTA+GE", "GE", "torch"]))
    if table.is_empty():
        return
    peak = table.sort("reserved_mb", descending=True).row(0, named=True)
    most = float(table.filter(pl.col("component") == peak["component"])["allocated_mb"].max())  # type: ignore[arg-type]
    gap = peak["reserved_mb"] - most
    if gap < 2048 or gap < 0.3 * peak["reserved_mb"]:
        return
    setting = str(view.meta.get("environment", {}).get("PYTORCH_NPU_ALLOC_CONF", ""))
    expandable = "expandable_segments:true" in setting.lower()
    yield found(
        view, (CODE, NAME), Severity.WARNING,
        _("The allocator reserves up to {reserved} MB while tensors never use more than {allocated} MB: {gap} MB ({share} %) are held in pieces.").format(
            reserved=f"{peak['reserved_mb']:.1f}", allocated=f"{most:.1f}", gap=f"{gap:.1f}", share=percent(gap / peak["reserved_mb"])),
        _("Expandable segments are on already: reduce the number of different shapes (buckets), or empty the cache once after set-up.") if expandable else
        _("Set PYTORCH_NPU_ALLOC_CONF=expandable_segments:True before the start (on old drivers max_split_size_mb:128 instead), and use fewer different shapes."),
        details={"reserved_mb": peak["reserved_mb"], "allocated_mb": most, "gap_mb": round(gap, 1), "setting": setting or None},
    )
