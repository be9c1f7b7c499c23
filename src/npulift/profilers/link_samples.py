"""Samples over time that msprof writes for links and memories (pcie, hccs, nic, roce, hbm, ddr, llc): every numeric column becomes a series."""

from __future__ import annotations

import polars as pl

from npulift.profilers import csv_text
from npulift.profilers.evidence import Part, conform
from npulift.profilers.head import Head

NAME = "link samples"
_FILES = ("pcie", "hccs", "nic", "roce", "hbm", "ddr", "llc", "npu_mem", "soc_pmu", "cpu_usage", "disk", "network", "host_", "sys_mem", "dvpp", "power", "temperature")


def accepts(head: Head) -> bool:
    """By the file's name: their columns differ too much."""
    return head.name.startswith(_FILES) and len(head.columns) > 1


def read(head: Head) -> Part:
    """One row a cell: the time where there is one, the column's name with the metric, the value."""
    text = csv_text.read(head.path)
    if not len(text):
        return Part(NAME, truncated=text.truncated)
    time = text.first("timestamp(us)", "time(us)", "timestamp")
    label = text.first("metric", "mode", "event", "opname")
    frames = []
    for column in text.frame.columns:
        if column in (time, label, "deviceid"):
            continue
        name = pl.lit(f"{head.name.split('_')[0].split('.')[0]} {column}")
        frames.append(text.frame.select(
            device=text.integer("deviceid"), time_us=text.number(time) if time else pl.lit(None, dtype=pl.Float64),
            name=pl.concat_str([name, pl.lit(" ") + text.text(label)], ignore_nulls=True) if label else name, value=text.number(column),
        ).drop_nulls("value"))
    frame = pl.concat(frames) if frames else pl.DataFrame()
    return Part(NAME, tables={"samples": conform("samples", frame)}, truncated=text.truncated, records=frame.height)
