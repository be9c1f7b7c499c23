"""ADV031 synchronisation: the host waits for the device inside the step.

Each .item(), .cpu(), print of a tensor, torch.npu.synchronize() or ASCEND_LAUNCH_BLOCKING drains the queue; afterwards the device idles until new work arrives.
Threshold: over 5 synchronising calls a step, or over 10 % of the host's time in them and more than one a step; one at the end of a step is normal (logging the loss).
Saving: the free time that follows; not estimated here.
Change: collect values on the device and read them every N steps; non_blocking copies.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, percent

CODE = "ADV031"
NAME = "synchronisation"

_SYNC = r"(?i)synchronize(stream|device|event)|StreamSynchronize|DeviceSynchronize|EventSynchronize|SynchronizeStreamWithTimeout"


def find(view: View) -> Iterator[Finding]:
    """From the host's calls, as sums or as events, and from aten::item and its kin."""
    steps = view.step_count * max(1, len(view.evidence.ranks))
    api = view.table("api")
    calls = api.filter(pl.col("name").str.contains(_SYNC))
    count, spent = int(calls["count"].sum() or 0), float(calls["total_us"].sum() or 0)
    whole = float(api["total_us"].sum() or 0)
    events = view.events.filter(pl.col("category").is_in(["api", "sync"]) & pl.col("name").str.contains(_SYNC) & (pl.col("device") == "CPU"))
    if not count and events.height:
        count, spent = events.height, float(events["duration_ns"].sum()) / 1e3
        whole = view.wall_ns / 1e3
    reads = view.operators.filter(pl.col("name").is_in(["aten::item", "aten::_local_scalar_dense", "aten::is_nonzero"]))
    items = reads.filter(pl.col("name") == "aten::item").height or reads.height
    share = spent / whole if whole else 0.0
    if view.operators.height and not view.is_ascend and not view.device.height:
        return  # on a CPU nothing waits for a queue
    known = bool(view.step_numbers)
    if not ((known and max(count, items) / steps > 5) or (share > 0.1 and count > steps) or (share > 0.5 and count > 5)):
        return
    where = view.table("framework").filter(pl.col("name").is_in(["aten::item", "aten::_local_scalar_dense"]) & pl.col("stack").is_not_null())["stack"].head(3).to_list()
    yield found(
        view, (CODE, NAME), Severity.WARNING,
        _("The host waits for the device {count} times ({per} a step) and spends {spent} us ({share} % of its time) on it.").format(
            count=max(count, items), per=f"{max(count, items) / steps:.1f}", spent=f"{spent:.1f}", share=percent(share)),
        _("Take .item(), .cpu(), print and torch.npu.synchronize() out of the step: keep values on the device, read them every N steps, copy with non_blocking=True; unset ASCEND_LAUNCH_BLOCKING."),
        share=min(1.0, share) if share else None, details={"calls": count, "item_calls": items, "us": round(spent, 1), "lines": where},
    )
