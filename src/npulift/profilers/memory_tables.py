"""memory_record*.csv, operator_memory*.csv and npu_module_mem*.csv: torch_npu writes MB, msprof KB; both come out as MB."""

from __future__ import annotations

import polars as pl

from npulift.profilers import csv_text
from npulift.profilers.evidence import Part, conform
from npulift.profilers.head import Head

NAME = "memory"


def accepts(head: Head) -> bool:
    """Totals by component and time, or allocations by name."""
    return (head.has("component") and head.any("totalreserved(mb)", "totalreserved(kb)")) or (head.has("name", "size(kb)") and head.any("allocationtime(us)"))


def read(head: Head) -> Part:
    """Read the samples or the allocations."""
    text = csv_text.read(head.path)
    if not len(text):
        return Part(NAME, truncated=text.truncated)

    def mb(name: str) -> pl.Expr:
        return text.number(f"{name}(mb)") if text.has(f"{name}(mb)") else text.number(f"{name}(kb)") / 1024

    if text.has("component"):
        frame = text.frame.select(
            component=text.text("component"), time_us=text.number("timestamp(us)"), allocated_mb=mb("totalallocated"), reserved_mb=mb("totalreserved"),
            active_mb=mb("totalactive"), device=text.text("devicetype", "device"),
        ).filter((pl.col("reserved_mb").fill_null(0) >= 0) | (pl.col("allocated_mb").fill_null(0) > 0))
        return Part(NAME, tables={"memory": conform("memory", frame)}, truncated=text.truncated, records=frame.height)
    frame = text.frame.select(
        name=text.text("name"), size_mb=text.number("size(kb)") / 1024, allocated_at_us=text.number("allocationtime(us)"),
        released_at_us=text.number("releasetime(us)"), duration_us=text.number("duration(us)"), total_allocated_mb=mb("allocationtotalallocated"),
        total_reserved_mb=mb("allocationtotalreserved"),
    ).filter(pl.col("size_mb") > 0)  # a negative size is a release whose allocation came before the window
    return Part(NAME, tables={"allocations": conform("allocations", frame)}, truncated=text.truncated, records=frame.height)
