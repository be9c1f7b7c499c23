"""data_preprocess*.csv and aicpu*.csv: AI CPU kernels. Old files mix ms and us; all comes out in us."""

from __future__ import annotations

import polars as pl

from npulift.profilers import csv_text
from npulift.profilers.evidence import Part, conform
from npulift.profilers.head import Head

NAME = "AI CPU kernels"


def accepts(head: Head) -> bool:
    """A node with compute and total time."""
    return head.has("node") and head.any("computetime(ms)", "computetime(us)") and head.any("totaltime(ms)", "totaltime(us)")


def read(head: Head) -> Part:
    """Read the table."""
    text = csv_text.read(head.path)
    if not len(text):
        return Part(NAME, truncated=text.truncated)

    def us(name: str) -> pl.Expr:
        return text.number(f"{name}(us)") if text.has(f"{name}(us)") else text.number(f"{name}(ms)") * 1000

    frame = text.frame.select(
        node=text.text("node"), compute_us=us("computetime"), copy_us=us("memcpytime"), task_us=us("tasktime"), dispatch_us=us("dispatchtime"),
        total_us=us("totaltime"),
    ).drop_nulls("node")
    return Part(NAME, tables={"ai_cpu": conform("ai_cpu", frame)}, truncated=text.truncated, records=frame.height)
