"""op_statistic*.csv and communication_statistic*.csv: sums by operator type."""

from __future__ import annotations

from npulift.profilers import csv_text
from npulift.profilers.evidence import Part, conform
from npulift.profilers.head import Head

NAME = "operator sums"


def accepts(head: Head) -> bool:
    """Type, count and total."""
    return head.has("optype", "count") and head.any("totaltime(us)", "totaltime(ns)")


def read(head: Head) -> Part:
    """Read the sums, in us."""
    text = csv_text.read(head.path)
    frame = text.frame.select(
        rank=text.integer("rankid"), type=text.text("optype"), device=text.text("coretype"), count=text.integer("count"),
        total_us=text.number("totaltime(us)"), min_us=text.number("mintime(us)"), avg_us=text.number("avgtime(us)"), max_us=text.number("maxtime(us)"),
    ).drop_nulls(["type", "total_us"]) if len(text) else text.frame
    return Part(NAME, tables={"operators": conform("operators", frame)}, truncated=text.truncated, records=frame.height)
