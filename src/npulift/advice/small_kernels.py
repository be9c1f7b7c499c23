"""ADV009 small-kernels: a great number of tiny kernels.

A launch costs the host 5 to 20 us; a kernel that is shorter than that leaves the device waiting, however fast it is.
Threshold: over half of at least 200 kernels take under 10 us, and the device is idle over 20 % of the time: with a full queue short kernels do no harm.
Saving: the idle time between them.
Change: fuse (torch.compile, torchair, or fused operators), capture the step as a graph, foreach/fused optimizers, larger batches.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, percent

CODE = "ADV009"
NAME = "small-kernels"


def find(view: View) -> Iterator[Finding]:
    """By type, where they are short and the device is idle."""
    kernels = view.kernels
    if kernels.height < 200 or view.free_share < 0.2 or view.is_extract:
        return
    short = kernels.filter(pl.col("duration_ns") < 10_000)
    if short.height < 0.5 * kernels.height:
        return
    types = short.group_by("type").agg(count=pl.len(), ns=pl.col("duration_ns").sum()).sort("count", descending=True)
    # time between the end of what came before and the start, as far as the source gives it
    idle = float(short["wait_ns"].fill_null(0).clip(0).sum())
    saved = min(idle, view.split["free"]) if idle else 0.0
    yield found(
        view, (CODE, NAME), Severity.WARNING,
        _("{n} of {all} kernels take under 10 us, and the device is idle for {free} % of the time: launching them costs more than running them. The most frequent: {what}.").format(
            n=short.height, all=kernels.height, free=percent(view.free_share), what=", ".join(f"{r['type']} x{r['count']}" for r in types.head(5).iter_rows(named=True))),
        _("Fuse or capture: torch.compile with torchair's graph mode, fused optimizers (torch_npu.optim.NpuFusedAdamW), foreach operations, a larger batch."),
        saved=saved, share=saved / view.split["wall"] if view.split["wall"] else None,
        details={"short": short.height, "kernels": kernels.height, "free_share": round(view.free_share, 4), "types": types.head(15).to_dicts()},
    )
