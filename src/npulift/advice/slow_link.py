"""ADV074 slow-link: one link is slower than the others of its kind.

A ring is as fast as its slowest link, so one bad cable or module slows every rank.
Threshold: a link's bandwidth (bytes over time, all its transfers of at least 1 MB in all) is under 60 % of the median of its transport and direction-free peers, with at least 3 peers.
Saving: a ring's time in proportion; not estimated.
Change: look at that card pair: HCCS or PCIe state, optical module, switch port; place ranks so that it is not used.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found

CODE = "ADV074"
NAME = "slow-link"


def find(view: View) -> Iterator[Finding]:
    """Links of each transport against their median; a node, when all links of one rank are slow."""
    links = view.table("links").filter((pl.col("time_ms") > 0) & (pl.col("size_mb") > 0) & (pl.col("source") != pl.col("destination")))
    if links.is_empty():
        return
    table = links.group_by("transport", "source", "destination").agg(mb=pl.col("size_mb").sum(), ms=pl.col("time_ms").sum()).filter(pl.col("mb") >= 1).with_columns(
        gbs=pl.col("mb") / pl.col("ms"))
    for part in table.partition_by("transport"):
        if part.height < 4:
            continue
        middle = float(part["gbs"].median())  # type: ignore[arg-type]
        slow = part.filter(pl.col("gbs") < 0.6 * middle).sort("gbs")
        if slow.is_empty() or slow.height > 0.3 * part.height:
            continue
        ends = pl.concat([slow["source"], slow["destination"]]).value_counts(sort=True)
        top = slow.row(0, named=True)
        all_links = part.filter((pl.col("source") == ends.row(0)[0]) | (pl.col("destination") == ends.row(0)[0])).height
        node = slow.height >= 3 and ends.row(0)[1] >= 0.8 * slow.height and ends.row(0)[1] >= 0.8 * all_links
        yield found(
            view, (CODE, NAME), Severity.WARNING,
            (_("All links of rank {rank} over {transport} are slow, ").format(rank=ends.row(0)[0], transport=top["transport"]) if node else
             _("The link {source}-{destination} over {transport} is slow, ").format(source=top["source"], destination=top["destination"], transport=top["transport"]))
            + _("{gbs} GB/s against a median of {median} GB/s over {n} links.").format(gbs=f"{top['gbs']:.2f}", median=f"{middle:.2f}", n=part.height),
            _("Check that pair: HCCS or PCIe link state (npu-smi info -t topo), the optical module and port (hccn_tool -i N -optical -g, -link -g); until it is mended, place ranks so that the ring avoids it."),
            details={"transport": top["transport"], "median_gbs": round(middle, 3), "slow": [{"link": f"{r['source']}-{r['destination']}", "gbs": round(r["gbs"], 3)} for r in slow.head(20).iter_rows(named=True)],
                     "rank": ends.row(0)[0] if node else None},
        )
