"""ADV075 slow-rank: one rank is slow, and the others wait for it in collectives.

In a collective all ranks leave together, so the one that comes last hardly waits and the others wait for it. The rank with the SMALLEST wait is the slow one.
Threshold: the smallest wait is under a third of the median of all ranks, and the median wait over 1 ms and over 10 % of the elapsed time.
Saving: the median wait, for each such collective.
Change: by where that rank's own step differs: more computing (clock, another job, imbalance), more free time (host, data, garbage collection).
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found

CODE = "ADV075"
NAME = "slow-rank"


def find(view: View) -> Iterator[Finding]:
    """Sums of waits by rank; then the step split of the slow rank against the median of the others."""
    times = view.table("collectives").filter(pl.col("rank").is_not_null() & pl.col("wait_ms").is_not_null() & ~pl.col("p2p").fill_null(False))
    if times.is_empty() or times["rank"].n_unique() < 3:
        yield from _from_steps(view)
        return
    # ranks of one group are compared with each other; groups of a few ranks each would hide the rank, so all sums go together as well
    waits = times.group_by("rank").agg(wait=pl.col("wait_ms").sum(), transit=pl.col("transit_ms").sum(), elapse=pl.col("elapse_ms").sum(), n=pl.len()).sort("wait")
    middle = float(waits["wait"].median())  # type: ignore[arg-type]
    low = waits.row(0, named=True)
    elapsed = float(waits["elapse"].median() or 0)  # type: ignore[arg-type]
    if low["wait"] > middle / 3 or middle < 1 or (elapsed and middle < 0.1 * elapsed):
        return
    rank = low["rank"]
    cause, facts, text = _where(view, rank)
    transits = waits["transit"].drop_nulls()
    even = bool(len(transits)) and float(transits.max()) <= 1.5 * max(1e-9, float(transits.min()))  # type: ignore[arg-type]
    message = _("Rank {rank} is the slow one: it waits {low} ms in collectives while the others wait {middle} ms (median) for it.").format(rank=rank, low=f"{low['wait']:g}", middle=f"{middle:g}")
    message += " " + text
    if even:
        message += " " + _("Transfers take the same on all ranks ({a} to {b} ms), so it is not a link.").format(a=f"{float(transits.min()):g}", b=f"{float(transits.max()):g}")  # type: ignore[arg-type]
    total = _step_ms(view)
    per_step = (middle - low["wait"]) / max(1, times["step"].n_unique())
    yield found(
        view, (CODE, NAME), Severity.WARNING, message, _fix(cause), share=min(1.0, per_step / total) if total else (min(1.0, (middle - low["wait"]) / elapsed) if elapsed else None),
        details={"rank": rank, "wait_ms": {str(r): w for r, w in zip(waits["rank"], waits["wait"], strict=True)} if waits.height <= 64 else None, "slow_wait_ms": low["wait"], "median_wait_ms": middle,
                 "cause": cause, "link": not even if len(transits) else None, **facts},
    )


def _where(view: View, rank: int) -> tuple[str, dict[str, object], str]:
    """(cause, figures, sentence): where the slow rank's step differs from the others'."""
    steps = view.table("steps").filter(pl.col("rank").is_not_null())
    if steps.is_empty() or rank not in steps["rank"]:
        return "unknown", {}, ""
    mine, others = steps.filter(pl.col("rank") == rank), steps.filter(pl.col("rank") != rank)
    difference = {c: float(mine[c].mean() or 0) - float(others.group_by("rank").agg(pl.col(c).mean())[c].median() or 0) for c in ("computing_us", "free_us")}  # type: ignore[arg-type]
    facts: dict[str, object] = {"computing_ms": round(float(mine["computing_us"].mean() or 0) / 1e3, 3), "free_ms": round(float(mine["free_us"].mean() or 0) / 1e3, 3),  # type: ignore[arg-type]
                                "extra_computing_ms": round(difference["computing_us"] / 1e3, 3), "extra_free_ms": round(difference["free_us"] / 1e3, 3)}
    if difference["free_us"] > max(1e3, difference["computing_us"]):
        return "host", facts, _("Its device is free for {free} ms a step, {extra} ms more than on the others, with about the same computing: its host or its data loader stalls.").format(
            free=f"{facts['free_ms']:g}", extra=f"{facts['extra_free_ms']:g}")
    if difference["computing_us"] > 1e3:
        return "computing", facts, _("It computes for {own} ms a step, {extra} ms more than the others: a lower clock, another job on the card, or more work.").format(
            own=f"{facts['computing_ms']:g}", extra=f"{facts['extra_computing_ms']:g}")
    return "unknown", facts, ""


def _step_ms(view: View) -> float:
    steps = view.table("steps")
    if steps.is_empty():
        return 0.0
    return float(steps.select(pl.sum_horizontal(pl.col("computing_us", "free_us", "exposed_us").fill_null(0)))["computing_us"].median() or 0) / 1e3  # type: ignore[arg-type]


def _from_steps(view: View) -> Iterator[Finding]:
    """Without collectives' waits: a rank whose computing or free time is far above the others', while its exposed communication is below theirs."""
    steps = view.table("steps").filter(pl.col("rank").is_not_null() & pl.col("computing_us").is_not_null())
    if steps["rank"].n_unique() < 3:
        return
    each = steps.group_by("rank").agg(pl.col("computing_us", "free_us", "exposed_us").fill_null(0).mean()).with_columns(own=pl.col("computing_us") + pl.col("free_us")).sort("own", descending=True)
    top, middle = each.row(0, named=True), float(each["own"].median())  # type: ignore[arg-type]
    exposed = float(each["exposed_us"].median())  # type: ignore[arg-type]
    if top["own"] - middle < max(1000.0, 0.1 * middle) or top["exposed_us"] > 0.5 * exposed:
        return
    cause, facts, text = _where(view, top["rank"])
    yield found(
        view, (CODE, NAME), Severity.WARNING,
        _("Rank {rank} is the slow one: its own work takes {own} us a step against {middle} us (median), and it waits the least in communication.").format(
            rank=top["rank"], own=f"{top['own']:.1f}", middle=f"{middle:.1f}") + " " + text,
        _fix(cause), share=min(1.0, (top["own"] - middle) / (top["own"] + top["exposed_us"])), details={"rank": top["rank"], "cause": cause, **facts},
    )


def _fix(cause: str) -> str:
    if cause == "host":
        return _("Look at that rank's host, not at the network: CPU load and binding, data loader workers and storage, garbage collection, logging or checkpoints on this rank alone.")
    if cause == "computing":
        return _("Look at that card, not at the network: clock, temperature and power (npu-smi), another process on it, and whether it gets longer sequences or more experts' tokens.")
    return _("Look at that rank's own computing and free time (step_trace_time.csv), not at the network.")
