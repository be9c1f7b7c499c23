"""ADV030 host-bound: the device waits for the host.

Free time with an empty queue means that Python, the dispatcher or the data loader are slower than the device.
Threshold: the device is free for over 20 % of the time and over 1 ms a step (an application that keeps the queue filled shows under 10 %).
Saving: the free time above 5 %.
Change: fewer and larger kernels, TASK_QUEUE_ENABLE=2, CPU binding, graph mode; no synchronisation inside the step; a profile with with_stack on inflates this.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, percent, us

CODE = "ADV030"
NAME = "host-bound"


def find(view: View) -> Iterator[Finding]:
    """From the vendor's step split where there is one, else from the timeline; single bad steps are another rule's."""
    split = view.split
    wall, free = split.get("wall") or 0.0, split.get("free") or 0.0
    if view.is_extract or not wall or (not view.has_timeline and view.table("steps").is_empty()):
        return
    if view.table("steps").height and not view.has_timeline:
        shares = view.table("steps").filter((pl.col("computing_us") + pl.col("free_us").fill_null(0)) > 0).select(
            s=pl.col("free_us").fill_null(0) / (pl.col("computing_us") + pl.col("free_us").fill_null(0) + pl.col("exposed_us").fill_null(0)))["s"]
        share = float(shares.median() or 0)  # type: ignore[arg-type]
    else:
        share = free / wall
    ranks = max(1, len(view.evidence.ranks))
    per_step = free / view.step_count / ranks
    if share < 0.2 or per_step < 1e6 or (view.kernels.height and view.kernels.height < 20):
        return
    if len(view.evidence.ranks) > 1 and not view.has_timeline:
        return  # free time of single ranks is the slow rank's matter
    saved = max(0.0, free - 0.05 * wall)
    launches = view.kernels.filter(pl.col("launch_ns").is_not_null())
    delay = float((launches["start_ns"] - launches["launch_ns"]).median() or 0) if launches.height else None  # type: ignore[arg-type]
    message = _("The device is free for {share} % of the time ({free} us a step): the host does not feed it fast enough.").format(share=percent(share), free=us(per_step))
    if delay is not None:
        message += " " + _("Kernels start {delay} us after their launch (median), so the queue is {state}.").format(delay=us(delay), state=_("empty") if delay < 200_000 else _("filled"))
    yield found(
        view, (CODE, NAME), Severity.WARNING, message,
        _("Send fewer, larger kernels (fused optimizer and norms, torch.compile with torchair), set TASK_QUEUE_ENABLE=2, bind processes to cores (CPU_AFFINITY_CONF=1), and keep .item() and prints out of the step."),
        saved=saved, share=share, details={"free_us_per_step": round(per_step / 1e3, 3), "free_share": round(share, 4), "launch_delay_us": None if delay is None else round(delay / 1e3, 3)},
    )
