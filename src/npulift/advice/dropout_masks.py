"""ADV014 dropout-masks: random masks for dropout are made at each step.

The DSA unit makes random bit masks beside the AI Core. They take part in the step's critical path when the AI Core waits for them.
Threshold: DSA kernels take over 2 % of kernel time (a warning from 10 %): a mask for each dropout is normal and partly hidden.
Saving: the part of it during which nothing else runs.
Change: drop dropouts of probability 0, use fused attention's own keep_prob, or train without dropout (usual for large language models).
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, percent, us

CODE = "ADV014"
NAME = "dropout-masks"


def find(view: View) -> Iterator[Finding]:
    """Kernels on the DSA, and the kernels that apply their masks."""
    which = pl.col("device").fill_null("").str.contains("DSA") | pl.col("type").fill_null("").str.contains("^DSA")
    rows = view.by_type.filter(which)
    total = int(rows["total_ns"].sum() or 0)
    if not total or total < 0.02 * view.kernel_ns:
        return
    apply = view.by_type.filter(pl.col("type").fill_null("").str.contains("^DropOut"))
    saved = view.saved_ns((pl.col("category") == "kernel") & which) if view.kernels.height else total
    yield found(
        view, (CODE, NAME), Severity.WARNING if total >= 0.1 * view.kernel_ns else Severity.INFO,
        _("Random masks for dropout ({names}, on the DSA) take {part} us, {share} % of the device's time, of which {exposed} us stand alone; applying them takes {apply} us more.").format(
            names=", ".join(f"{r['type']} x{r['count']}" for r in rows.head(2).iter_rows(named=True)), part=us(total), share=percent(total / view.kernel_ns), exposed=us(saved),
            apply=us(int(apply["total_ns"].sum() or 0))),
        _("Set dropout to 0 where the recipe allows, or give fused attention its keep_prob, so that the mask is made inside the kernel."),
        saved=saved, details={"us": round(total / 1e3, 3), "count": int(rows["count"].sum()), "apply_us": round(int(apply["total_ns"].sum() or 0) / 1e3, 3)},
    )
