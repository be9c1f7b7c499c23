"""ADV078 waiting-collective: one collective takes far longer than its kind: it waits for another rank.

The time of a collective on one rank includes waiting for the last rank to arrive. A single broadcast or all-reduce that is tens of times longer than the others of its type has not moved
more data: another rank came late (start-up, data, a checkpoint), or something is wrong with it.
Threshold: over 10 times the median of its type (or over half of the wall time where it is alone), over 10 ms, and over 5 % of the wall time.
Saving: all of it but the median.
Change: look at what the other ranks did then; leave start-up collectives out of the profile (warm up first).
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, percent

CODE = "ADV078"
NAME = "waiting-collective"


def find(view: View) -> Iterator[Finding]:
    """Outliers by type, on one rank."""
    rows = view.communications
    if rows.is_empty() or not view.wall_ns:
        return
    ranks = max(1, len(view.evidence.ranks))
    rows = rows.with_columns(rest=((pl.col("duration_ns").sum().over("type") - pl.col("duration_ns")) / (pl.len().over("type") - 1).clip(1)), n=pl.len().over("type"),
                             middle=pl.col("duration_ns").median().over("type"), low=pl.col("duration_ns").min().over("type"))
    usual = pl.when(pl.col("n") <= 2).then(pl.col("low")).otherwise(pl.col("middle"))
    wall = view.wall_ns / ranks
    out = rows.filter((pl.col("duration_ns") > 10_000_000) & (pl.col("duration_ns") > 0.05 * wall) & ((pl.col("duration_ns") > 10 * usual) | ((pl.col("n") == 1) & (pl.col("duration_ns") > 0.5 * wall))))
    for row in out.sort("duration_ns", descending=True).head(5).iter_rows(named=True):
        rest = row["low"] if row["n"] == 2 else row["middle"] if row["n"] > 1 else 0
        saved = row["duration_ns"] - rest
        same = pl.col("name") == row["name"]
        alone = view.saved_ns((pl.col("category") == "communication") & same & (pl.col("duration_ns") == row["duration_ns"]))
        yield found(
            view, (CODE, NAME), Severity.WARNING,
            _("{name} takes {ms} ms, {share} % of the time; others of its type take {rest} ms. It does not move that much data: it waits for another rank.").format(
                name=row["name"], ms=f"{row['duration_ns'] / 1e6:.1f}", share=percent(row["duration_ns"] / wall), rest=f"{rest / 1e6:.3f}" if row["n"] > 1 else "-"),
            _("Look at what the other ranks did before it (loading, data, checkpoint, compilation): give npulift advise all ranks' folders. If it is start-up, warm up for a few steps before the profile."),
            saved=min(saved, alone), share=min(1.0, min(saved, alone) / wall),
            details={"name": row["name"], "ms": round(row["duration_ns"] / 1e6, 3), "usual_ms": round(rest / 1e6, 3), "wait_before_us": None if row["wait_ns"] is None else round(row["wait_ns"] / 1e3, 3), "step": row["step"], "rank": row["rank"]},
        )
