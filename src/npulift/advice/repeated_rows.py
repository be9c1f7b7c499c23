"""ADV103 repeated-rows: rows are there more than once.

The same kernel with the same start cannot run twice: files were joined, or exported twice, or rows were copied by hand. Sums would count it twice, so repeated rows were counted once.
Threshold: any.
Saving: none.
Change: export again, or give each file once.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _, ngettext
from npulift.profilers.view import View, found

CODE = "ADV103"
NAME = "repeated-rows"


def find(view: View) -> Iterator[Finding]:
    """Rows with the same kernel, start and duration, and rows with the same start and task whose shapes differ."""
    n = view.repeats
    kernels = view.evidence.profile.events.filter(pl.col("category").is_in(["kernel", "communication"]) & pl.col("start_ns").is_not_null())
    same_time = kernels.height - kernels.select(pl.struct("rank", "name", "start_ns", "duration_ns", "stream").n_unique()).item() if kernels.height else 0
    if not n and not same_time:
        return
    example = kernels.filter(pl.struct("rank", "name", "start_ns", "duration_ns", "stream").is_duplicated()).head(1)
    altered = same_time - n
    message = ngettext("{n} row repeats another (same kernel, start and duration), such as {name}; it was counted once.", "{n} rows repeat others (same kernel, start and duration), such as {name}; they were counted once.", same_time).format(
        n=same_time, name=example["name"][0] if example.height else "-")
    if altered:
        message += " " + ngettext("{n} of them differs in its shapes alone, so somebody edited the file.", "{n} of them differ in their shapes alone, so somebody edited the file.", altered).format(n=altered)
    yield found(
        view, (CODE, NAME), Severity.WARNING, message, _("Export the profile again from the raw data, and give each file once."),
        details={"repeated": n, "same_start": same_time, "rows": kernels.height, "example": example["name"][0] if example.height else None},
    )
