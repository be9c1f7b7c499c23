"""ADV080 expert-imbalance: experts get unequal numbers of tokens.

All ranks wait for the one with the most tokens; its share over the mean is the factor by which the expert layers take longer.
Threshold: the largest load is over 1.5 times the mean (an even router shows 1.1 to 1.3).
Saving: 1 - mean / largest of the expert layers' time.
Change: auxiliary balance loss, capacity factor, more experts a rank, placement by load.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found

CODE = "ADV080"
NAME = "expert-imbalance"


def find(view: View) -> Iterator[Finding]:
    """From a table of loads; from grouped products' times over ranks otherwise."""
    loads = view.table("experts")
    if loads.height:
        over = "rank" if loads["rank"].null_count() == 0 and loads["rank"].n_unique() > 1 else "expert"
        sums = loads.group_by(over).agg(pl.col("tokens").sum()).sort("tokens", descending=True)
        what = _("rank") if over == "rank" else _("expert")
    else:
        grouped = view.kernels.filter(pl.col("type").fill_null("").str.contains("GroupedMatmul|GroupedMatMul") & pl.col("rank").is_not_null())
        if grouped.is_empty() or grouped["rank"].n_unique() < 3:
            return
        over, what = "rank", _("rank")
        sums = grouped.group_by("rank").agg(tokens=pl.col("duration_ns").sum().cast(pl.Float64)).sort("tokens", descending=True)
    if sums.height < 2:
        return
    mean, top = float(sums["tokens"].mean()), float(sums["tokens"][0])  # type: ignore[arg-type]
    if mean <= 0 or top < 1.5 * mean:
        return
    yield found(
        view, (CODE, NAME), Severity.WARNING,
        _("{what} {n} has {ratio} times the mean load of the experts ({top} against {mean}): the others wait for it.").format(
            what=what.capitalize(), n=sums[over][0], ratio=f"{top / mean:.2f}", top=f"{top:g}", mean=f"{mean:.1f}"),
        _("Use an auxiliary balance loss or bias-based routing, a capacity factor, or place hot experts on different ranks (or twice)."),
        details={"by": over, over: int(sums[over][0]), "ratio": round(top / mean, 3), "loads": sums.head(64).to_dicts(), "saving_share_of_experts": round(1 - mean / top, 4)},
    )
