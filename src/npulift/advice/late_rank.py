"""ADV076 late-rank: one rank enters collectives later than the others, every time.

With clocks aligned by the collectives' common end, the rank that starts last is the one that the rest wait for; a constant offset at the first step only means a late start of the process.
Threshold: one rank starts last in over 70 % of at least 5 collectives seen by at least 3 ranks, by over 1 ms (median).
Saving: the median lateness.
Change: as for a slow rank.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found

CODE = "ADV076"
NAME = "late-rank"


def find(view: View) -> Iterator[Finding]:
    """Elapsed times tell the start, since all ranks end together: no clock has to be trusted."""
    times = view.table("collectives").filter(pl.col("rank").is_not_null() & pl.col("elapse_ms").is_not_null() & ~pl.col("p2p").fill_null(False))
    if times.is_empty() or times["rank"].n_unique() < 3 or times["wait_ms"].null_count() < times.height:
        return  # where waits are known, the slow rank's rule says it
    joint = times.group_by("step", "name", "group").agg(
        n=pl.col("rank").n_unique(), rank=pl.col("rank").sort_by("elapse_ms").first(), low=pl.col("elapse_ms").min(), middle=pl.col("elapse_ms").median()).filter(pl.col("n") >= 3)
    if joint.height < 5:
        return
    counts = joint["rank"].value_counts(sort=True)
    rank, n = counts.row(0)
    late = float((joint.filter(pl.col("rank") == rank)["middle"] - joint.filter(pl.col("rank") == rank)["low"]).median())  # type: ignore[arg-type]
    if n < 0.7 * joint.height or late < 1:
        return
    yield found(
        view, (CODE, NAME), Severity.WARNING,
        _("Rank {rank} enters {n} of {all} collectives last, {late} ms after the others (median).").format(rank=rank, n=n, all=joint.height, late=f"{late:.2f}"),
        _("Compare that rank's step with another's: npulift advise RANK --against OTHER."), details={"rank": rank, "collectives": joint.height, "last": n, "late_ms": round(late, 3)},
    )
