"""ADV073 retransmission: packets over RDMA were sent again.

A lost packet is sent again after the time-out of some seconds; a collective with one takes over four seconds for what takes milliseconds.
Threshold: an RDMA transfer time over 4 s (the network card's default time-out is about that).
Saving: that time.
Change: check the optical modules, the switch's PFC and ECN settings, HCCL_RDMA_TC and HCCL_RDMA_SL.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found

CODE = "ADV073"
NAME = "retransmission"


def find(view: View) -> Iterator[Finding]:
    """By operator and rank."""
    rows = view.table("transports").filter((pl.col("transport") == "RDMA") & (pl.col("time_ms") > 4000)).sort("time_ms", descending=True)
    if rows.is_empty():
        return
    top = rows.row(0, named=True)
    yield found(
        view, (CODE, NAME), Severity.WARNING,
        _("{n} collectives spend over 4 s in an RDMA transfer, the longest {name} with {ms} ms for {mb} MB: packets were lost and sent again.").format(
            n=rows.height, name=top["name"], ms=f"{top['time_ms']:.1f}", mb=f"{top['size_mb']:.1f}"),
        _("Check the optical modules and the switch (PFC, ECN, port errors with hccn_tool -i N -stat -g), and that HCCL_RDMA_TC and HCCL_RDMA_SL match the switch."),
        details={"collectives": rows.select("rank", "step", "name", "time_ms", "size_mb").head(10).to_dicts()},
    )
