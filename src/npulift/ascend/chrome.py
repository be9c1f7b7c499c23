"""A simulation as a Chrome trace: opens in Perfetto, chrome://tracing and TensorBoard's profiler plug-in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from npulift.ascend import records
from npulift.ascend.memory import Usage
from npulift.ascend.simulation import Simulation
from npulift.ascend.timing import Predicted
from npulift.files import atomic_file


def write(simulation: Simulation, played: list[Predicted], usage: Usage | None, path: Path) -> None:
    """Write the trace events format (JSON). A kernel without a predicted duration is drawn 1 us long and says so in its arguments."""
    events: list[dict[str, Any]] = []
    trace = simulation.trace
    for pid, name in ((1, f"virtual {simulation.chip.soc} (simulated)"), (2, "host (this machine)")):
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
    starts = [int(o["start_ns"]) for o in trace.operators[:1]] + [p.event.time_ns for p in played[:1]]
    origin = min(starts, default=0)
    for stream in sorted({p.event.stream for p in played}):
        events.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": stream, "args": {"name": f"stream {stream}"}})
    for number, p in enumerate(played):
        e = p.event
        start = ((p.start_ns or e.time_ns) - origin) / 1000
        arguments = {
            "operator": e.operator, "module": e.module, "phase": e.phase, "line": str(e.location or ""), "call": str(e.call or ""),
            "shapes": [list(o.shape) for o in e.signature.inputs] if e.signature else [], "bytes": e.bytes,
            "duration": "predicted" if p.duration_ns is not None else "unknown",
        }
        events.append({"ph": "X", "name": p.type, "cat": "kernel", "pid": 1, "tid": e.stream, "ts": start, "dur": (p.duration_ns or 1000) / 1000, "args": arguments})
        flow = {"cat": "launch", "name": "launch", "id": number}
        events.append({"ph": "s", "pid": 2, "tid": e.thread, "ts": (e.time_ns - origin) / 1000, **flow})
        events.append({"ph": "f", "bp": "e", "pid": 1, "tid": e.stream, "ts": start, **flow})
    for o in trace.operators:
        if o["end_ns"]:
            events.append({
                "ph": "X", "name": trace.text(int(o["name"])), "cat": "cpu_op", "pid": 2, "tid": int(o["thread"]), "ts": (int(o["start_ns"]) - origin) / 1000,
                "dur": (int(o["end_ns"]) - int(o["start_ns"])) / 1000,
                "args": {"module": trace.text(int(o["module"])), "line": str(trace.place(int(o["location"]))[0] or ""), "phase": records.PHASES[int(o["phase"])]},
            })
    for when, allocated in usage.curve if usage else ():
        events.append({"ph": "C", "name": "allocated", "pid": 1, "ts": (when - origin) / 1000, "args": {"bytes": allocated}})
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ms", "metadata": {"source": "npulift simulate", "kind": "simulated"}}, file)
