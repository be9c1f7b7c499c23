"""ADV018 clock-drop: the AI Core's clock drops below its usual rate.

Power or temperature limits lower the clock, and everything takes longer in proportion.
Threshold: over 5 % of the samples are under 95 % of the highest; single idle samples do not count.
Saving: the mean shortfall over the whole run.
Change: cooling, power cap, a neighbour job; compare npu-smi's temperature and power.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, percent

CODE = "ADV018"
NAME = "clock-drop"


def find(view: View) -> Iterator[Finding]:
    """From the clock's samples."""
    clock = view.table("samples").filter(pl.col("name").str.contains(r"(?i)ai ?core ?freq|clock") & (pl.col("value") > 0))["value"]
    if len(clock) < 5:
        return
    top = float(clock.max())  # type: ignore[arg-type]
    low = clock.filter(clock < 0.95 * top)
    if len(low) <= 0.05 * len(clock):
        return
    lost = 1 - float(clock.mean()) / top  # type: ignore[arg-type]
    yield found(
        view, (CODE, NAME), Severity.WARNING,
        _("The AI Core's clock is below 95 % of {top} MHz in {n} of {all} samples, down to {low} MHz: everything takes about {lost} % longer.").format(
            top=f"{top:.0f}", n=len(low), all=len(clock), low=f"{float(low.min()):.0f}", lost=percent(lost)),  # type: ignore[arg-type]
        _("Look at power and temperature (npu-smi info -t power, -t temp), at the power cap, and at other jobs on the same card."),
        share=lost, details={"top_mhz": top, "low_mhz": float(low.min()), "samples": len(clock), "low_samples": len(low)},  # type: ignore[arg-type]
    )
