"""ADV004 recompilation: operators are compiled again and again, because shapes change.

Each new shape compiles anew where just-in-time compilation is on, and misses the caches of tiling and of workspace where it is off.
Threshold: over 10 % of the later steps take over 3 times the median while the number of compiled files grows; or one operator type runs with over 20 shapes, over a
quarter of its calls with a shape of their own, and dynamic kernels (state 'dynamic') take over 30 % of the time: below that, caches hold.
Saving: the time of the spikes.
Change: pad or bucket to a few shapes; torch.npu.set_compile_mode(jit_compile=False).
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.step_times import step_times
from npulift.profilers.view import View, found

CODE = "ADV004"
NAME = "recompilation"


def find(view: View) -> Iterator[Finding]:
    """From step times with growing caches, and from the shapes of kernels."""
    for run in step_times(view.table("step_times")):
        spikes = run.spikes
        slow_start = run.ratio >= 5
        if run.grows and (spikes or slow_start) and len(run.seconds) >= 3:
            lost = sum(s - run.later for _n, s in spikes) + (run.seconds[0] - run.later if slow_start else 0.0)
            counts = [f for f in run.files if f is not None]
            yield found(
                view, (CODE, NAME), Severity.WARNING,
                _("Compiled files grow from {first} to {last} over the steps, and {n} of {steps} later steps take over 3 times the median: shapes change and are compiled again.").format(
                    first=counts[0], last=counts[-1], n=len(spikes), steps=len(run.seconds) - 1),
                _fix(), share=lost / sum(run.seconds), details={"spikes": [{"step": n, "seconds": s} for n, s in spikes[:20]], "compiled_files": counts, "chip": run.chip or None},
            )
    kernels = view.kernels.filter(pl.col("input_shapes").is_not_null())
    if kernels.height < 100:
        return
    table = kernels.group_by("type").agg(count=pl.len(), shapes=pl.col("input_shapes").n_unique(), ns=pl.col("duration_ns").sum(),
                                         dynamic=(pl.col("state") == "dynamic").mean()).filter(
        (pl.col("shapes") > 20) & (pl.col("shapes") > 0.25 * pl.col("count")) & (pl.col("dynamic").fill_null(0) > 0.5)).sort("shapes", descending=True)
    if table.height and table["ns"].sum() >= 0.3 * view.kernel_ns:
        yield found(
            view, (CODE, NAME), Severity.WARNING,
            _("{type} runs with {shapes} different shapes in {count} calls, as a dynamic kernel: each new shape costs tiling anew, or a compilation.").format(
                type=table["type"][0], shapes=table["shapes"][0], count=table["count"][0]),
            _fix(), details={"types": table.head(10).to_dicts()},
        )


def _fix() -> str:
    return _("Bring inputs to a few shapes (pad to buckets, drop the last small batch), and call torch.npu.set_compile_mode(jit_compile=False). npulift compile --bucket auto chooses buckets.")
