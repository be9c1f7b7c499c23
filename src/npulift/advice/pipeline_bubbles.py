"""ADV079 pipeline-bubbles: pipeline stages wait for each other.

With p stages and m micro-batches, (p - 1) / (m + p - 1) of a step is a bubble even when all stages are equal; unequal stages add to it.
Threshold: the vendor's 'Bubble' takes over 15 % of the stage time: with 4 stages and 16 micro-batches the unavoidable part is 16 %.
Saving: half of it with interleaving or twice the micro-batches; an estimate.
Change: more micro-batches, interleaved or zero-bubble schedules, stages with equal time (the last has the vocabulary head).
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, percent

CODE = "ADV079"
NAME = "pipeline-bubbles"


def find(view: View) -> Iterator[Finding]:
    """From the step split."""
    steps = view.table("steps").filter((pl.col("bubble_us") > 0) & (pl.col("stage_us") > 0))
    if steps.is_empty():
        return
    bubble, stage = float(steps["bubble_us"].sum()), float(steps["stage_us"].sum())
    share = bubble / (stage + bubble)
    if share < 0.15:
        return
    by_rank = steps.group_by("rank").agg(pl.col("bubble_us", "computing_us").mean()).sort("bubble_us", descending=True)
    yield found(
        view, (CODE, NAME), Severity.WARNING,
        _("Pipeline bubbles take {share} % of the time ({us} us over {n} steps).").format(share=percent(share), us=f"{bubble:.1f}", n=steps.height),
        _("Raise the number of micro-batches, interleave (virtual pipeline stages), and move layers from the stages that compute longest to the others."),
        share=0.5 * share, details={"bubble_us": bubble, "stage_us": stage, "by_rank": by_rank.head(64).to_dicts(), "estimate": True},
    )
