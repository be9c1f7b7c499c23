"""ADV077 no-overlap: communication does not overlap with computing.

Gradients can be reduced while the backward pass still runs; communication that stands alone is added to the step.
Threshold: exposed communication takes over 10 % of the step and over half of all communication, and it is not one rank that is waited for.
Saving: the exposed part, up to the computing time that it could hide behind.
Change: gradient buckets that are ready early, overlap options of the parallel library, a separate stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, percent, us

CODE = "ADV077"
NAME = "no-overlap"


def find(view: View) -> Iterator[Finding]:
    """From the split; a single collective that waits is another rule's."""
    split = view.split
    exposed, hidden, wall = split["communication_exposed"], split["communication_overlapped"], split["wall"]
    if not wall or exposed < 0.1 * wall or exposed < hidden:
        return
    if len(view.evidence.ranks) > 1 or view.table("collectives")["rank"].n_unique() > 1:
        return
    longest: Any = view.communications["duration_ns"].max() if view.communications.height else 0
    if longest and int(longest) > 0.5 * exposed:
        exposed -= int(longest)
        if exposed < 0.1 * (wall - int(longest)) or exposed < hidden:
            return
    if not view.has_timeline:
        rows = view.table("steps").filter(pl.col("exposed_us").is_not_null() & pl.col("step").is_not_null())
        usual = float((rows["exposed_us"] / (rows["computing_us"] + rows["free_us"].fill_null(0) + rows["exposed_us"])).median() or 0) if rows.height else 1.0  # type: ignore[arg-type]
        if usual < 0.1:
            return  # one bad step, not the rule
    saved = min(exposed, split["computing"])
    types = view.communications.group_by("type").agg(ns=pl.col("duration_ns").sum(), n=pl.len()).sort("ns", descending=True)
    yield found(
        view, (CODE, NAME), Severity.WARNING,
        _("{exposed} us of communication stand alone ({share} % of the time), {hidden} us overlap with computing. Most: {what}.").format(
            exposed=us(exposed), share=percent(exposed / wall), hidden=us(hidden), what=", ".join(f"{r['type']} x{r['n']}" for r in types.head(3).iter_rows(named=True)) or "-"),
        _("Let reduction start while the backward pass runs: DDP buckets (bucket_cap_mb) that fill early, overlap_grad_reduce and overlap_param_gather in Megatron, forward prefetch in FSDP."),
        saved=saved, share=saved / wall, details={"exposed_us": round(exposed / 1e3, 3), "overlapped_us": round(hidden / 1e3, 3), "types": types.head(5).to_dicts()},
    )
