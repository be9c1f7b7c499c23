"""ADV105 rows-left-out: the kernel table is a selection, not the whole run.

Each kernel's wait time says how long it waited after the one before it on its queue. Where the gaps between the rows are far longer than these waits, other kernels ran in the gaps
and their rows are not in the file. Times of the kernels that are there are right; free time, step time and shares are not statements about the run.
Threshold: over half of the span is gap, and the waits explain under a fifth of it.
Saving: none.
Change: give the whole kernel_details.csv.
"""

from __future__ import annotations

from collections.abc import Iterator

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, percent, us

CODE = "ADV105"
NAME = "rows-left-out"


def find(view: View) -> Iterator[Finding]:
    """One finding, where the waits contradict the gaps."""
    if not view.is_extract:
        return
    waits = float(view.device["wait_ns"].fill_null(0).clip(0).sum())
    yield found(
        view, (CODE, NAME), Severity.INFO,
        _("The kernels waited {waits} us in all, but {share} % of the span ({free} us) is gaps between the rows: rows were left out of this file, so its free time and shares are not the run's.").format(
            waits=us(waits), share=percent(view.free_share), free=us(view.split["free"])),
        _("Give the whole kernel_details.csv or the profiler's folder."), details={"waits_us": round(waits / 1e3, 3), "gaps_us": round(view.split["free"] / 1e3, 3)},
    )
