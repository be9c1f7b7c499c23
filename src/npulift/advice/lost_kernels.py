"""ADV101 lost-kernels: the first kernels of the recorded window are missing.

At the switch from warm-up to recording, kernels that were launched but not started may be lost. Totals divided by `active` are then too small.
Threshold: fewer calls of the most regular kernels than active steps (profiler_info.json, or --active), or a first kernel that waited about as long as the ones after it for a predecessor
which is not in the file.
Saving: none; averages are wrong.
Change: divide by what was found, leave the first recorded step out, warm up longer.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, us

CODE = "ADV101"
NAME = "lost-kernels"


def find(view: View) -> Iterator[Finding]:
    """Kernels that come once (or k times) a step and are fewer than the steps ask for."""
    kernels = view.kernels
    if kernels.is_empty() or len(view.evidence.ranks) > 1:
        return
    active = int(view.evidence.overrides.get("active") or 0) or _active(view)
    table = kernels.group_by("name", "type").agg(n=pl.len(), total=pl.col("duration_ns").sum(), first=pl.col("start_ns").min()).sort("total", descending=True)
    top = table.row(0, named=True)
    head = _missing_head(kernels)
    found_count = top["n"]
    marked = len(kernels["step"].drop_nulls().unique())
    per_step = max(1, round(found_count / active)) if active else 1
    average = top["total"] / found_count
    if active and marked <= 1 and found_count < active * per_step and (head or marked == 0) and found_count >= 2:
        expected = active * per_step
        yield found(
            view, (CODE, NAME), Severity.WARNING,
            _("{n} of {expected} expected calls of {type} were recorded (active={active}): {missing} are missing at the head of the window, lost when the profiler switched from warm-up to recording. "
              "Per-step averages here use the {n} that were found: {average} us a call.").format(
                n=found_count, expected=expected, type=top["type"], active=active, missing=expected - found_count, average=us(average)),
            _fix(), details={"recorded": found_count, "expected": expected, "missing": expected - found_count, "active": active, "where": "head", "average_us": round(average / 1e3, 3),
                             "first_wait_us": head},
        )
    elif head and not active:
        yield found(
            view, (CODE, NAME), Severity.WARNING if marked == 0 else Severity.INFO,
            _("The first kernel recorded ({name}) waited {wait} us for one before it that is not in the file: the head of the window is missing. {n} calls were found; averages use that count ({average} us a call), not the schedule's. "
              "Give --active N to compare with the schedule.").format(name=top["name"], wait=f"{head:.1f}", n=found_count, average=us(average)),
            _fix(), details={"recorded": found_count, "where": "head", "average_us": round(average / 1e3, 3), "first_wait_us": head},
        )


def _active(view: View) -> int:
    for config in view.evidence.configs:
        schedule = config.get("schedule")
        if isinstance(schedule, dict) and str(schedule.get("active", "")).isdigit():
            return int(schedule["active"]) * max(1, int(schedule.get("repeat") or 1) if str(schedule.get("repeat", "")).isdigit() else 1)
    return 0


def _missing_head(kernels: pl.DataFrame) -> float | None:
    """The first kernel's wait in us when it looks like those of the same kernel after it, which waited for a predecessor; None otherwise."""
    ordered = kernels.filter(pl.col("start_ns").is_not_null() & pl.col("wait_ns").is_not_null()).sort("start_ns")
    if ordered.height < 3:
        return None
    first = ordered.row(0, named=True)
    same = ordered.filter(pl.col("name") == first["name"])
    if same.height < 3 or first["wait_ns"] < 10_000:
        return None
    usual = float(same["wait_ns"][1:].median())  # type: ignore[arg-type]
    return first["wait_ns"] / 1e3 if 0.5 * usual <= first["wait_ns"] <= 2 * usual else None


def _fix() -> str:
    return _("Do not divide totals by `active`: count steps by Step Id or by the calls found, drop the first recorded step, and use schedule(wait=1, warmup=2, active=...) so that the switch falls into a step you can spare.")
