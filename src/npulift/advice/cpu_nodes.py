"""ADV120 cpu-nodes: parts of the network run on the CPU, though an accelerator is in use.

Each island on the CPU costs its own time and a crossing of the border on both sides.
Threshold: CPU kernels beside accelerator kernels take over 1 % of the time.
Saving: their time.
Change: npulift check names the operators that the target refuses and what to write instead.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, percent

CODE = "ADV120"
NAME = "cpu-nodes"


def find(view: View) -> Iterator[Finding]:
    """Kernels on the CPU in a profile that has an accelerator's as well (ONNX Runtime, Vela)."""
    kernels = view.kernels
    if kernels.is_empty() or view.is_ascend:
        return
    on_cpu = kernels.filter(pl.col("device") == "CPU")
    rest = kernels.filter(pl.col("device") != "CPU")
    if on_cpu.is_empty() or rest.is_empty() or view.meta.get("kineto"):
        return
    total = int(on_cpu["duration_ns"].sum())
    types = on_cpu.group_by("type").agg(count=pl.len(), ns=pl.col("duration_ns").sum()).sort("ns", descending=True)
    share = total / max(1, view.kernel_ns)
    yield found(
        view, (CODE, NAME), Severity.WARNING if share >= 0.01 else Severity.INFO,
        _("{n} nodes run on the CPU ({what}), {share} % of the time, beside {device}.").format(
            n=on_cpu.height, what=", ".join(f"{r['type']} x{r['count']}" for r in types.head(5).iter_rows(named=True)), share=percent(share), device=rest["device"][0]),
        _("Run npulift check MODEL --target ... for the reason of each and the form that the accelerator takes."), saved=total, share=share, details={"types": types.head(20).to_dicts(), "nodes": on_cpu["name"].head(20).to_list()},
    )
