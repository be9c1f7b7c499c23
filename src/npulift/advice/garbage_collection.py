"""ADV032 garbage-collection: Python's garbage collector stops the host inside steps.

A full collection walks over every object, and a training process has millions: 10 to 500 ms during which nothing is launched.
Threshold: collections over 10 ms take over 2 % of the time: below that the queue hides them.
Saving: their time, where the queue runs empty.
Change: gc.freeze() after set-up, gc.disable() in the loop and gc.collect() every N steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _, ngettext
from npulift.profilers.view import View, found, percent

CODE = "ADV032"
NAME = "garbage-collection"


def find(view: View) -> Iterator[Finding]:
    """From the lane of the collector."""
    rows = view.events.filter((pl.col("category") == "gc") & (pl.col("duration_ns") > 10_000_000))
    total = int(rows["duration_ns"].sum() or 0)
    wall = view.wall_ns or 1
    if not total or total < 0.02 * wall:
        return
    yield found(
        view, (CODE, NAME), Severity.WARNING,
        ngettext("{n} garbage collection stops the host for {ms} ms, {share} % of the time.", "{n} garbage collections stop the host for {ms} ms in all, {share} % of the time.", rows.height).format(
            n=rows.height, ms=f"{total / 1e6:.1f}", share=percent(min(1.0, total / wall))),
        _("Call gc.freeze() after the model and the optimizer are built, gc.disable() before the loop, and gc.collect() by hand every few hundred steps, on all ranks in the same step."),
        share=min(1.0, total / wall), details={"count": rows.height, "ms": round(total / 1e6, 3), "longest_ms": round(int(rows["duration_ns"].max()) / 1e6, 3)},  # type: ignore[arg-type]
    )
