"""ADV020 data-dependent-loop: operators with data-dependent output sizes run again and again.

After NonZero, Unique or MaskedSelect the host must read the size back before it can go on, so the queue drains each time. A Python loop over samples with such an
operator inside does so once a sample.
Threshold: over 8 a step: a few in a loss or in post-processing are normal.
Saving: the gaps around them.
Change: one masked operation over the whole batch instead of a loop; torch.where; fixed capacity.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, us

CODE = "ADV020"
NAME = "data-dependent-loop"


def find(view: View) -> Iterator[Finding]:
    """By type, with the idle time that goes with them."""
    pattern = r"^(NonZero|Unique|MaskedSelect|Where|UniqueConsecutive)\w*$"
    rows = view.by_type.filter(pl.col("type").fill_null("").str.contains(pattern) & ~pl.col("device").fill_null("").str.contains("CPU"))
    ranks = max(1, len(view.evidence.ranks))
    count = int(rows["count"].sum() or 0) / view.step_count / ranks
    if count <= 8:
        return
    kernels = view.kernels
    frame = kernels.with_columns(hit=pl.col("type").fill_null("").str.contains(pattern)) if kernels.height else kernels
    # the next kernel but one after such an operator waits until the host has read the size
    waits = float(frame.filter(pl.col("hit").shift(1).fill_null(False) | pl.col("hit").shift(2).fill_null(False))["wait_ns"].fill_null(0).clip(0).sum()) if kernels.height else 0.0
    saved = min(waits, view.split["free"]) if view.has_timeline else 0.0
    yield found(
        view, (CODE, NAME), Severity.WARNING,
        _("{names} run {count} times a step: the host reads their output's size back each time and the device waits ({waits} us idle right after them).").format(
            names=", ".join(f"{r['type']} x{r['count']}" for r in rows.iter_rows(named=True)), count=f"{count:g}", waits=us(waits)),
        _("Replace the loop over samples by one masked operation (torch.where, multiplication by a mask, masked sums), so that no size depends on data."),
        saved=saved, share=saved / view.split["wall"] if view.split.get("wall") else None, details={"per_step": count, "idle_us": round(waits / 1e3, 3), "types": rows.to_dicts()},
    )
