"""A simulation as a Profile, the table that advice and reports read."""

from __future__ import annotations

from typing import Any

import polars as pl

from npulift.ascend import records
from npulift.ascend.records import Event, Operand
from npulift.ascend.simulation import Simulation
from npulift.ascend.timing import Predicted, play
from npulift.measured import Kind
from npulift.messages import _
from npulift.profile import SCHEMA, Profile

_CATEGORY = {records.LAUNCH: "kernel", records.COPY: "copy", records.COLLECTIVE: "communication", records.MEMSET: "copy", records.SYNC: "sync", records.FALLBACK: "host"}


def profile(simulation: Simulation, played: list[Predicted] | None = None) -> Profile:
    """Kernels, copies, collectives, synchronisations, fallbacks and host operators; times from the cost model where it knows them."""
    trace = simulation.trace
    events = list(trace.events())
    played = play(events, simulation.chip) if played is None else played
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA}
    for p in played:
        _row(columns, p.event, p)
    for event in events:
        if event.kind in (records.SYNC, records.FALLBACK):
            _row(columns, event, None)
    frame = pl.DataFrame(columns, schema=SCHEMA)
    host = _operators(simulation)
    frame = pl.concat([frame, host]) if len(host) else frame
    first = frame["start_ns"].min() if len(frame) else 0
    frame = frame.with_columns(pl.col("start_ns") - first).sort("start_ns", maintain_order=True)
    notes = [_("Simulated: torch_npu ran on hollow CANN, without a device. Host times are this machine's.")]
    if not any(p.duration_ns is not None for p in played):
        notes.append(_("There is no cost model for these kernels here, so their durations are unknown."))
    meta = {
        "chip": simulation.chip.name, "soc": simulation.chip.soc, "mode": simulation.mode, "world_size": simulation.cards, "what": simulation.what,
        **simulation.result.get("versions", {}),
    }
    return Profile(frame, Kind.PREDICTED, "npulift simulate", meta, tuple(notes))


def _row(columns: dict[str, list[Any]], event: Event, predicted: Predicted | None) -> None:
    s = event.signature
    ins: tuple[Operand, ...] = s.inputs if s else ()
    outs: tuple[Operand, ...] = s.outputs if s else ()
    place = event.location
    row = {
        "name": event.name, "type": predicted.type if predicted else event.name, "category": _CATEGORY[event.kind],
        "device": predicted.device if predicted else "CPU",
        "start_ns": predicted.start_ns if predicted else event.time_ns - event.duration_ns,
        "duration_ns": predicted.duration_ns if predicted else event.duration_ns or None,
        "wait_ns": predicted.start_ns - event.time_ns if predicted and predicted.start_ns is not None and predicted.duration_ns is not None else None,
        "stream": event.stream, "step": event.step, "rank": 0,
        "input_shapes": _shapes(ins), "input_dtypes": ";".join(o.dtype for o in ins), "input_formats": ";".join(o.format for o in ins),
        "output_shapes": _shapes(outs), "output_dtypes": ";".join(o.dtype for o in outs), "output_formats": ";".join(o.format for o in outs),
        "bytes": event.bytes or sum(o.bytes for o in (*ins, *outs)), "module": event.module,
        "file": place.file if place else None, "line": place.line if place else None,
        "metrics": _metrics(event),
    }
    for name, values in columns.items():
        values.append(row.get(name))


def _shapes(operands: tuple[Operand, ...]) -> str:
    return ";".join(",".join(map(str, o.shape)) for o in operands)


def _metrics(event: Event) -> str:
    import json

    facts: dict[str, Any] = {"operator": event.operator, "phase": event.phase}
    if event.node:
        facts["node"] = event.node
    if event.call and event.call != event.location:
        facts["call"] = str(event.call)
    if event.kind == records.COLLECTIVE:
        facts["ranks"] = event.detail
    return json.dumps(facts)


def _operators(simulation: Simulation) -> pl.DataFrame:
    table = simulation.trace.operators
    trace = simulation.trace
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA}
    for o in table:
        if not o["end_ns"]:
            continue
        place = trace.place(int(o["location"]))[0]
        row = {
            "name": trace.text(int(o["name"])), "type": trace.text(int(o["name"])), "category": "operator", "device": "CPU",
            "start_ns": int(o["start_ns"]), "duration_ns": int(o["end_ns"]) - int(o["start_ns"]), "step": int(o["step"]), "rank": 0,
            "module": trace.text(int(o["module"])), "file": place.file if place else None, "line": place.line if place else None, "metrics": "",
        }
        for name, values in columns.items():
            values.append(row.get(name))
    return pl.DataFrame(columns, schema=SCHEMA)
