"""ADV070 small-packets: collectives move data in packets that are too small.

A packet costs a fixed time, whatever its size; below some hundred kilobytes that time is nearly all, and the link's bandwidth does not matter.
Threshold: over half of the packets, and over half of the transfer time, are in packets under 1 MB over HCCS or under 2 MB over RDMA, with at least 50 packets, and the wait is under a
third of the elapsed time (else another rank is the cause). The limits are where the links reach about four fifths of their bandwidth.
Saving: the transfer time less the same bytes at a moderate bandwidth of the link (10 GB/s); an estimate.
Change: larger buckets: DDP(bucket_cap_mb=..., gradient_as_bucket_view=True), coalesced collectives, fewer and larger parameters.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found

CODE = "ADV070"
NAME = "small-packets"

_LARGE_MB = {"RDMA": 2.0}
_MODERATE_GBS = 10.0


def find(view: View) -> Iterator[Finding]:
    """By transport, over all collectives; SDMA is left out where HCCS tells the same bytes."""
    packets = view.table("packets")
    if packets.is_empty():
        return
    times = view.table("collectives")
    elapsed, waited = float(times["elapse_ms"].sum() or 0), float(times["wait_ms"].sum() or 0)
    have = set(packets["transport"].unique().to_list())
    for transport in sorted(have - ({"SDMA"} if "HCCS" in have else set())):
        rows = packets.filter(pl.col("transport") == transport)
        limit = _LARGE_MB.get(transport, 1.0)
        small = rows.filter(pl.col("packet_mb") < limit)
        count, all_count = int(small["count"].sum()), int(rows["count"].sum())
        time, all_time = float(small["time_ms"].sum()), float(rows["time_ms"].sum())
        if count < 50 or count < 0.5 * all_count or time < 0.5 * all_time or time <= 0:
            continue
        if elapsed and waited / elapsed > 1 / 3:
            continue
        size = float((small["packet_mb"] * small["count"]).sum())
        typical = small.sort("time_ms", descending=True)["packet_mb"][0]
        speed = size * 1e6 / (time / 1e3) / 1e9
        saved_ms = max(0.0, time - size / 1e3 / _MODERATE_GBS * 1e3)
        names = small.group_by("name").agg(pl.col("time_ms").sum()).sort("time_ms", descending=True)["name"].head(3).to_list()
        yield found(
            view, (CODE, NAME), Severity.WARNING,
            _("{count} of {all} packets over {transport} are small ({kib} KiB): {size} MB in {time} ms, {speed} GB/s. The transfer is latency-bound, by packets that are too small; "
              "the wait is short ({wait} of {elapsed} ms), so no rank is late.").format(
                count=count, all=all_count, transport=transport, kib=f"{typical * 1e6 / 1024:.0f}", size=f"{size:.1f}", time=f"{time:.1f}", speed=f"{speed:.2f}", wait=f"{waited:.1f}", elapsed=f"{elapsed:.1f}"),
            _("Raise the bucket size so that many small gradients go in one collective: DDP(bucket_cap_mb=100 or more, gradient_as_bucket_view=True), a larger reduce bucket in ZeRO/FSDP, or fuse small parameters and gradients."),
            share=min(1.0, saved_ms / elapsed) if elapsed else None,
            details={"transport": transport, "packets": count, "packet_kib": round(typical * 1e6 / 1024, 1), "size_mb": round(size, 3), "time_ms": round(time, 3), "bandwidth_gbs": round(speed, 4),
                     "wait_ms": round(waited, 3), "elapsed_ms": round(elapsed, 3), "cause": "latency-bound small packets", "straggler": False, "operators": names,
                     "saving_ms": round(saved_ms, 3), "estimate": True},
        )
