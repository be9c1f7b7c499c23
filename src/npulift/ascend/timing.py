"""Predicted time of each launch, and the launches played forward on their streams. Kind: predicted; None where the cost model knows nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from npulift.ascend import records
from npulift.ascend.chips import Chip
from npulift.ascend.records import Event


@dataclass(frozen=True, slots=True)
class Predicted:
    """One event with its time on the device.

    start_ns, duration_ns: None when unknown.   type: kernel type as the vendor's profiler calls it.   device: AI_CORE, AI_VECTOR_CORE, AI_CPU, HCCL, ...
    low_ns, high_ns: the error bar of the duration.   calibrated: its constants come from measurements.
    """

    event: Event
    start_ns: int | None
    duration_ns: int | None
    type: str
    device: str
    low_ns: int = 0
    high_ns: int = 0
    calibrated: bool = False


def model() -> Any | None:
    """The cost model (npulift.ascend.cost), or None where it is not part of this installation."""
    try:
        from npulift.ascend import cost
    except ImportError:
        return None
    return cost


def play(events: list[Event], chip: Chip) -> list[Predicted]:
    """Launches, copies and collectives in order, each on its stream: it starts when the host has launched it and its stream is free.

    Host times are those of this machine (the launches themselves, not their kernels, ran here).
    """
    cost = model()
    predict = cost.Predictor(chip) if cost is not None else None
    free: dict[tuple[int, int], int] = {}
    recorded: dict[tuple[int, int], int] = {}
    played = []
    for event in events:
        key = (event.device, event.stream)
        if event.kind == records.EVENT_RECORD:
            recorded[(event.device, event.detail)] = free.get(key, 0)
            continue
        if event.kind == records.EVENT_WAIT:
            free[key] = max(free.get(key, 0), recorded.get((event.device, event.detail), 0))
            continue
        if event.kind not in (records.LAUNCH, records.COPY, records.COLLECTIVE, records.MEMSET):
            continue
        found = predict(event) if predict is not None else None
        device = {records.COPY: "copy", records.COLLECTIVE: "HCCL"}.get(event.kind, "AI_CORE")
        start = max(event.time_ns, free.get(key, 0))
        if found is None:
            played.append(Predicted(event, start, None, event.signature.name if event.signature else event.name, device))
            continue
        duration = max(0, round(found.ns))
        free[key] = start + duration
        if event.kind == records.LAUNCH:
            device = found.device
        played.append(Predicted(event, start, duration, found.type, device, round(found.low_ns), round(found.high_ns), found.calibrated))
    return played
