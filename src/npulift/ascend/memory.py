"""Memory over time, from what the caching allocator handed out: the peak, and what holds it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from npulift.ascend import records
from npulift.ascend.records import Trace
from npulift.findings import Location


@dataclass(frozen=True, slots=True)
class Holder:
    """What has a part of the memory at the peak.

    what: 'parameter', 'gradient', 'optimizer state', 'buffer', 'forward' (activations and inputs), 'backward' or 'optimizer' (temporary).
    location: the line that allocated it, the innermost outside torch.
    """

    what: str
    location: Location | None
    module: str
    bytes: int
    count: int


@dataclass(frozen=True)
class Usage:
    """Allocated bytes over time.

    curve: (time in ns, allocated bytes), thinned out.   peak: largest sum of what was handed out.   peak_ns: when.   holders: at the peak, largest first.
    """

    curve: tuple[tuple[int, int], ...]
    peak: int
    peak_ns: int
    holders: tuple[Holder, ...]
    by_kind: dict[str, int]


def usage(trace: Trace, holders: dict[str, str]) -> Usage | None:
    """Replay the allocations. holders: address -> what is there at the end. None when the allocator was not watched."""
    rows = trace.select(records.ALLOCATED, records.RELEASED)
    if not len(rows):
        return None
    table = trace.records[rows]
    now = peak = 0
    peak_index = -1
    # the allocator adds 32 bytes and rounds up to 512; a block whose rest is too small to be split off counts for more (not known here)
    kinds, sizes, times = table["kind"].tolist(), ((table["bytes"] + 32 + 511) // 512 * 512).tolist(), table["time_ns"].tolist()
    curve = []
    every = max(1, len(rows) // 4000)
    for i, (kind, size) in enumerate(zip(kinds, sizes, strict=True)):
        now += size if kind == records.ALLOCATED else -size
        if now > peak:
            peak, peak_index = now, i
        if i % every == 0 or i == peak_index:
            curve.append((times[i], now))
    addresses = table["detail"].tolist()
    last_use: dict[int, int] = {a: i for i, a in enumerate(addresses) if kinds[i] == records.ALLOCATED}  # the allocation that is alive at the end
    freed_after: dict[int, int] = {a: i for i, a in enumerate(addresses) if kinds[i] == records.RELEASED}
    live: dict[int, int] = {}
    for i in range(peak_index + 1):
        if kinds[i] == records.ALLOCATED:
            live[addresses[i]] = i
        else:
            live.pop(addresses[i], None)
    groups: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    by_kind: dict[str, int] = defaultdict(int)
    for address, i in live.items():
        event = trace.event(int(rows[i]))
        at_end = last_use.get(address) == i and freed_after.get(address, -1) < i
        what = holders.get(str(address), event.phase) if at_end else event.phase
        group = groups[(what, event.call or event.location, event.module)]
        group[0] += sizes[i]
        group[1] += 1
        by_kind[what] += sizes[i]
    made = tuple(Holder(w, place, module, size, count) for (w, place, module), (size, count) in groups.items())
    return Usage(tuple(curve), peak, times[peak_index], tuple(sorted(made, key=lambda h: -h.bytes)), dict(by_kind))
