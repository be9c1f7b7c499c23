"""ADV121 layout-nodes: the runtime moves data about instead of computing.

Reorder, Convert, Transpose and copies at the borders of layouts and precisions.
Threshold: over 15 % of the time (a warning; the compilers' own conversions at input and output stay below that).
Saving: those between layers that could share a layout.
Change: channels-last inputs, one precision, transposes moved to the ends: npulift tune tries them.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, percent

CODE = "ADV121"
NAME = "layout-nodes"


def find(view: View) -> Iterator[Finding]:
    """In profiles of inference runtimes and of Vela."""
    if view.is_ascend or view.kernels.is_empty() or view.meta.get("kineto"):
        return
    which = pl.col("type").fill_null("").str.to_lowercase().str.contains(r"^(reorder|transpose|permute|convert|reformat|cast|pad|layout|nchw|nhwc|memcpy)")
    rows = view.kernels.filter(which)
    total = int(rows["duration_ns"].sum() or 0)
    if not total or total < 0.15 * view.kernel_ns:
        return
    types = rows.group_by("type").agg(count=pl.len(), ns=pl.col("duration_ns").sum()).sort("ns", descending=True)
    yield found(
        view, (CODE, NAME), Severity.WARNING,
        _("{share} % of the time goes to moving data, not computing: {what}.").format(share=percent(total / view.kernel_ns), what=", ".join(f"{r['type']} x{r['count']}" for r in types.head(5).iter_rows(named=True))),
        _("Give inputs in the layout that the compiler wants (channels last for NPUs of this kind), keep one precision through the network, and move transposes to the ends; npulift tune tries these."),
        saved=view.saved_ns(which) if view.has_timeline else total, share=total / view.kernel_ns, details={"types": types.head(10).to_dicts()},
    )
