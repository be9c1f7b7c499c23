"""ADV008 casts: conversions between dtypes take much of the time.

Mixed precision converts weights and activations again and again: under autocast each float32 weight is cast in every forward pass.
Threshold: Cast kernels on the AI Core take over 5 % of kernel time (a warning from 10 %): mixed precision itself needs 2 to 4 %.
Saving: casts of tensors that do not change between calls, and pairs that cancel.
Change: keep the model in bfloat16 or float16 with float32 master weights in the optimizer, rather than casting under autocast; compute masks and positions in the dtype in which they are used.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, percent, us

CODE = "ADV008"
NAME = "casts"


def find(view: View) -> Iterator[Finding]:
    """By pair of dtypes."""
    which = pl.col("type").fill_null("").is_in(["Cast", "CastD"]) & ~pl.col("device").fill_null("").str.contains("CPU")
    total = int(view.by_type.filter(which)["total_ns"].sum() or 0)
    if not total or total < 0.05 * view.kernel_ns:
        return
    rows = view.kernels.filter(which)
    pairs = rows.group_by("input_dtypes", "output_dtypes").agg(count=pl.len(), ns=pl.col("duration_ns").sum()).sort("ns", descending=True)
    yield found(
        view, (CODE, NAME), Severity.WARNING if total >= 0.1 * view.kernel_ns else Severity.INFO,
        _("Casts take {share} % of the device's time ({part} us); most of it: {what}.").format(
            share=percent(total / view.kernel_ns), part=us(total),
            what=", ".join(f"{r['input_dtypes']} -> {r['output_dtypes']} x{r['count']}" for r in pairs.head(3).iter_rows(named=True)) or "Cast"),
        _("Keep parameters in the low precision (float32 copies only in the optimizer), make masks and position tables in the dtype of their consumer once, and drop .float() followed by .half()."),
        saved=view.saved_ns((pl.col("category") == "kernel") & which) if rows.height else total, share=total / view.kernel_ns, details={"us": round(total / 1e3, 3), "pairs": pairs.head(10).to_dicts()},
    )
