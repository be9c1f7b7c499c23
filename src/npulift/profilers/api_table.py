"""api_statistic*.csv: host-side calls by level, in us."""

from __future__ import annotations

from npulift.profilers import csv_text
from npulift.profilers.evidence import Part, conform
from npulift.profilers.head import Head

NAME = "host calls"


def accepts(head: Head) -> bool:
    """Level, API name and count."""
    return head.has("apiname", "count") and head.any("time(us)", "totaltime(us)")


def read(head: Head) -> Part:
    """Read the table."""
    text = csv_text.read(head.path)
    if not len(text):
        return Part(NAME, truncated=text.truncated)
    frame = text.frame.select(
        level=text.text("level"), name=text.text("apiname"), total_us=text.number("time(us)", "totaltime(us)"), count=text.integer("count"),
        avg_us=text.number("avg(us)"), min_us=text.number("min(us)"), max_us=text.number("max(us)"),
    ).drop_nulls(["name", "total_us"])
    return Part(NAME, tables={"api": conform("api", frame)}, truncated=text.truncated, records=frame.height)
