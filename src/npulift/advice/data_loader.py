"""ADV033 data-loader: steps wait for data.

The time before a step's first operator in which the host takes the next batch.
Threshold: over 10 % of the step (preparing time in step_trace_time, the DataLoader's own range in a trace, or a data column of step times), and over 1 ms.
Saving: that time, when workers load ahead.
Change: num_workers, pin_memory, prefetch_factor, persistent_workers; decode and augment beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, percent

CODE = "ADV033"
NAME = "data-loader"


def find(view: View) -> Iterator[Finding]:
    """From three sources."""
    lost = whole = 0.0
    source = ""
    times = view.table("step_times").filter(pl.col("data_seconds").is_not_null())
    steps = view.table("steps").filter(pl.col("step").is_not_null() & pl.col("preparing_us").is_not_null())
    ranges = view.events.filter(pl.col("name").str.contains(r"(?i)DataLoader.*__next__|enumerate\(DataLoader\)|dataloader"))
    ranges = ranges.filter(pl.col("category").is_in(["operator", "module", "host"]))
    if times.height:
        lost, whole, source = float(times["data_seconds"].sum()) * 1e6, float(times["seconds"].sum()) * 1e6, "step times"
        count = times.height
    elif ranges.height:
        lost, source, count = float(ranges["duration_ns"].sum()) / 1e3, "trace", ranges.height
        marks = view.events.filter(pl.col("category") == "step")
        whole = (float(marks["duration_ns"].sum()) or float(view.wall_ns)) / 1e3
    elif steps.height > 0 and not view.device.height:
        # a single step may start late for any reason: the median says what is usual
        each = steps.select(p="preparing_us", s=pl.col("computing_us") + pl.col("free_us").fill_null(0) + pl.col("exposed_us").fill_null(0) + pl.col("preparing_us"))
        lost, whole, source, count = float(each["p"].median() or 0), float(each["s"].median() or 0), "step_trace_time", steps.height  # type: ignore[arg-type]
    if not whole or lost / whole < 0.1 or lost / max(1, count if source != "step_trace_time" else 1) < 1000:
        return
    yield found(
        view, (CODE, NAME), Severity.WARNING,
        _("Waiting for data takes {share} % of the time ({us} us; from the {source}).").format(share=percent(min(1.0, lost / whole)), us=f"{lost:.1f}", source=source),
        _("Raise num_workers, set pin_memory=True, prefetch_factor and persistent_workers, decode and augment beforehand or on the device, and copy with non_blocking=True."),
        share=min(1.0, lost / whole), details={"us": round(lost, 1), "source": source},
    )
