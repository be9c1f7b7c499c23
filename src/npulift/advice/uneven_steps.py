"""ADV035 uneven-steps: single steps take far longer than the rest.

A checkpoint, an evaluation, a slow batch, a garbage collection or a new shape. An average hides them; a median does not.
Threshold: a step (not the first) over 1.5 times the median and 10 ms above it; its extra time is told by where it went.
Saving: the extra time of these steps, as a share of all.
Change: by where the extra time is: preparing (data), free (host), computing (shapes), communication (another rank).
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.step_times import step_times
from npulift.profilers.view import View, found

CODE = "ADV035"
NAME = "uneven-steps"


def find(view: View) -> Iterator[Finding]:
    """From the step split, else from plain step times."""
    table = view.table("steps").filter(pl.col("step").is_not_null() & (pl.col("rank").is_null() | (pl.col("rank").n_unique() <= 1)))
    parts = {"computing_us": _("computing"), "exposed_us": _("communication that is not overlapped"), "free_us": _("free time")}
    if table.height >= 3:
        whole = table.with_columns(total=pl.sum_horizontal(pl.col(*parts).fill_null(0)))
        middle = float(whole["total"].median())  # type: ignore[arg-type]
        for row in whole.sort("total", descending=True).head(3).iter_rows(named=True):
            if row["total"] <= 1.5 * middle or row["total"] - middle < 10_000:
                continue
            extra = {name: float(row[c] or 0) - float(table[c].fill_null(0).median()) for c, name in parts.items()}  # type: ignore[arg-type]
            where = max(extra, key=lambda k: extra[k])
            prepare = float(row["preparing_us"] or 0) - float(table["preparing_us"].fill_null(0).median() or 0)  # type: ignore[arg-type]
            data = prepare > 0.5 * extra[where] and where == parts["free_us"]
            yield found(
                view, (CODE, NAME), Severity.WARNING,
                _("Step {step} takes {total} us, {ratio}x the median ({median} us); {extra} us of the difference are {where}.").format(
                    step=row["step"], total=f"{row['total']:.1f}", ratio=f"{row['total'] / middle:.1f}", median=f"{middle:.1f}", extra=f"{extra[where]:.1f}", where=where)
                + (" " + _("Most of it ({us} us) comes before the step's first operator: waiting for data.").format(us=f"{prepare:.1f}") if data else ""),
                _("Look at the data loader in that step: decoding, a new epoch's workers, slow storage.") if data else
                _("Computing: look for a new shape. Communication: look at which rank came late. Free time: garbage collection, checkpoints, logging, data."),
                share=(row["total"] - middle) / float(whole["total"].sum()),
                details={"step": row["step"], "total_us": row["total"], "median_us": middle, "extra_us": {k: round(v, 1) for k, v in extra.items()}, "preparing_extra_us": round(prepare, 1)},
            )
        return
    for run in step_times(view.table("step_times")):
        spikes = [(n, s) for n, s in run.spikes if s - run.later > 0.01]
        if spikes and not run.grows and len(run.seconds) >= 5:
            yield found(
                view, (CODE, NAME), Severity.WARNING,
                _("{n} of {all} later steps take over 3 times the median ({median} s), the longest {longest} s (step {step}).").format(
                    n=len(spikes), all=len(run.seconds) - 1, median=f"{run.later:g}", longest=f"{max(s for _n, s in spikes):g}", step=max(spikes, key=lambda p: p[1])[0]),
                _("Look at what these steps do besides: checkpoints, evaluation, logging, garbage collection, a new epoch's data loader, a batch of another shape."),
                share=sum(s - run.later for _n, s in spikes) / sum(run.seconds), details={"spikes": [{"step": n, "seconds": s} for n, s in spikes[:20]]},
            )
