"""ADV034 host-device-copies: copies between host and device take much of the step.

Copies from pageable memory block the host; copies that nothing runs beside stop the device as well.
Threshold: copies during which nothing else runs take over 5 % of the busy time.
Saving: the exposed part.
Change: pin_memory and non_blocking=True, keep data on the device, prefetch on a stream of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, percent, us

CODE = "ADV034"
NAME = "host-device-copies"


def find(view: View) -> Iterator[Finding]:
    """Copies as events."""
    rows = view.device.filter(pl.col("category") == "copy")
    if rows.is_empty():
        return
    saved = view.saved_ns(pl.col("category") == "copy")
    if view.share(saved) < 0.05:
        return
    total = int(rows["duration_ns"].sum())
    yield found(
        view, (CODE, NAME), Severity.WARNING,
        _("{n} copies take {total} us, of which {exposed} us ({share} % of the busy time) have no kernel beside them.").format(n=rows.height, total=us(total), exposed=us(saved), share=percent(view.share(saved))),
        _("Use pin_memory=True and .to('npu', non_blocking=True), move the next batch on a stream of its own while this one is computed, and make constants on the device once."),
        saved=saved, details={"count": rows.height, "us": round(total / 1e3, 3), "names": rows.group_by("name").len().sort("len", descending=True).head(5).to_dicts()},
    )
