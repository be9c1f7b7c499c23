"""step_trace_time.csv and cluster_step_trace_time.csv: each step split into computing, communication and free, in us."""

from __future__ import annotations

import polars as pl

from npulift.profilers import csv_text
from npulift.profilers.evidence import Part, conform
from npulift.profilers.head import Head

NAME = "step trace"


def accepts(head: Head) -> bool:
    """The columns that all versions have."""
    return head.has("step", "computing", "free")


def read(head: Head) -> Part:
    """Read the steps; in the cluster's file the rows of type 'stage' are left out."""
    text = csv_text.read(head.path)
    if not len(text):
        return Part(NAME, truncated=text.truncated)
    rank = text.integer("index") if text.has("type", "index") else text.integer("rank", "rankid")
    frame = text.frame
    if text.has("type", "index"):
        frame = frame.filter(pl.col("type").str.strip_chars().str.to_lowercase() == "rank")
    frame = frame.select(
        rank=rank, device=text.integer("deviceid"), step=text.integer("step"), computing_us=text.number("computing"),
        exposed_us=text.number("communication(notoverlapped)"), overlapped_us=text.number("overlapped"), communication_us=text.number("communication"),
        free_us=text.number("free"), stage_us=text.number("stage"), bubble_us=text.number("bubble"), preparing_us=text.number("preparing"),
    ).drop_nulls("computing_us")
    return Part(NAME, tables={"steps": conform("steps", frame)}, truncated=text.truncated, records=frame.height)
