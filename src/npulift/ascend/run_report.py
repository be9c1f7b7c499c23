"""The report of a simulated run."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from npulift.ascend import memory, records
from npulift.ascend.memory import Usage
from npulift.ascend.run_findings import fallbacks, of_script, read_backs
from npulift.ascend.simulation import Simulation
from npulift.ascend.timing import Predicted, play
from npulift.findings import Location
from npulift.measured import Kind
from npulift.messages import _
from npulift.report.document import Chart, Facts, Report, Section, Table, Text

_GIB = 2**30


def report(simulation: Simulation, played: list[Predicted] | None = None, usage: Usage | None = None) -> Report:
    """Everything that a run shows, as data, findings and sections."""
    trace = simulation.trace
    played = play(list(trace.events()), simulation.chip) if played is None else played
    usage = usage or memory.usage(trace, simulation.result.get("holders") or {})
    found = tuple(of_script(simulation, usage))
    data = facts(simulation, played, usage)
    ok = simulation.status == "finished" or (simulation.status == "exit" and simulation.exit_code == 0)
    title = _("{what} on a virtual {chip} ({mode} mode)").format(what=simulation.what, chip=simulation.chip.soc, mode=simulation.mode)
    return Report("simulate", title, {"input": simulation.what}, simulation.chip.name, ok, found, data, tuple(_sections(simulation, data, usage)))


def facts(simulation: Simulation, played: list[Predicted], usage: Usage | None) -> dict[str, Any]:
    """The JSON keys of `simulate`."""
    trace, result = simulation.trace, simulation.result
    launches = [p for p in played if p.event.kind == records.LAUNCH]
    fell = fallbacks(simulation)
    devices = result.get("memory") or []
    peak = max([d["peak_allocated"] for d in devices] + [usage.peak if usage else 0], default=0)
    reserved = max((d["peak_reserved"] for d in devices), default=0)
    out_of_memory = bool(simulation.error.get("out_of_memory")) or bool(len(trace.select(records.OUT_OF_MEMORY)))
    steps: dict[int, Counter[str]] = defaultdict(Counter)
    for p in launches:
        steps[p.event.step][p.event.phase] += 1
    copies: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    for p in played:
        if p.event.kind == records.COPY:
            entry = copies[(p.event.name, p.event.location)]
            entry[0] += 1
            entry[1] += p.event.bytes
    syncs: Counter[Any] = Counter((e.name, e.location) for e in trace.events(records.SYNC))
    kernels: dict[str, list[Any]] = defaultdict(lambda: [0, 0, 0, set()])
    for p in launches:
        row = kernels[p.type]
        row[0] += 1
        row[1] += p.duration_ns or 0
        row[2] += p.duration_ns is not None
        row[3].add(p.event.signature.function if p.event.signature else p.event.name)
    collectives: dict[Any, list[int]] = defaultdict(lambda: [0, 0, 0])
    for p in played:
        if p.event.kind == records.COLLECTIVE:
            entry = collectives[(p.event.name, p.event.detail)]
            entry[0] += 1
            entry[1] += p.event.bytes
            entry[2] += p.duration_ns or 0
    return {
        "mode": simulation.mode,
        "cards": simulation.cards,
        "status": simulation.status,
        "exit_code": simulation.exit_code,
        "error": {k: simulation.error.get(k) for k in ("type", "message", "file", "line")} if simulation.error else None,
        "simulated": True,
        "cann": simulation.cann or "hollow",
        "versions": result.get("versions") or {},
        "launches": len(launches),
        "launches_by_step": {str(k): dict(v) for k, v in sorted(steps.items())},
        "kernels": [
            {"type": t, "functions": sorted(f), "count": n, "time_ms": ns / 1e6 if known == n else None} for t, (n, ns, known, f) in
            sorted(kernels.items(), key=lambda k: (-k[1][1], -k[1][0]))
        ],
        "signatures": len({p.event.signature for p in launches}),
        "fallbacks": [{"operator": f.operator, "count": f.count, **_place(f.location)} for f in fell],
        "copies": [{"direction": d, "count": n, "bytes": b, **_place(place)} for (d, place), (n, b) in sorted(copies.items(), key=lambda c: -c[1][1])],
        "syncs": [{"kind": k, "count": n, **_place(place)} for (k, place), n in syncs.most_common()],
        "read_backs": [{"operator": o, "count": n, "bytes": b, **_place(place)} for o, place, n, b in read_backs(simulation)],
        "collectives": [{"name": n, "ranks": r, "count": c, "bytes": b, "time_ms": t / 1e6 if t else None} for (n, r), (c, b, t) in collectives.items()],
        "peak_memory_bytes": peak,
        "memory": {
            "peak_allocated_bytes": peak, "peak_reserved_bytes": reserved, "capacity_bytes": simulation.chip.usable_bytes, "fits": not out_of_memory,
            "fragmentation_bytes": max(0, reserved - peak), "devices": devices,
            "at_peak": dict(sorted((usage.by_kind if usage else {}).items(), key=lambda k: -k[1])),
            "holders": [{"what": h.what, "module": h.module or None, "bytes": h.bytes, "count": h.count, **_place(h.location)} for h in (usage.holders if usage else ())[:50]],
        },
        "time": _time(simulation, played, fell),
        "assumptions": result.get("assumptions") or [],
        "assumed_zero_reads": len(trace.select(records.READ)),
        "host": {"seconds": round(simulation.seconds, 3), "peak_memory_bytes": simulation.host_bytes, "step_seconds": _step_seconds(simulation)},
        "notes": result.get("notes") or [],
    }


def _place(location: Location | None) -> dict[str, Any]:
    return {"file": location.file if location else None, "line": location.line if location else None}


def _step_seconds(simulation: Simulation) -> list[float]:
    """Host seconds of each optimizer step's operators, first to last."""
    table = simulation.trace.operators
    out = []
    for step in sorted(set(table["step"].tolist())):
        rows = table[table["step"] == step]
        out.append(round((int(rows["end_ns"].max()) - int(rows["start_ns"].min())) / 1e9, 6))
    return out[:1000]


def _time(simulation: Simulation, played: list[Predicted], fell: list[Any]) -> dict[str, Any] | None:
    """Predicted seconds by kind of device; None where there is no cost model or it knows none of the kernels."""
    timed = [p for p in played if p.duration_ns is not None]
    if not timed:
        return None
    by_device: dict[str, float] = defaultdict(float)
    for p in timed:
        by_device[p.device] += (p.duration_ns or 0) / 1e9
    end = max((p.start_ns or 0) + (p.duration_ns or 0) for p in timed)
    begin = min(p.event.time_ns for p in played)
    unknown = Counter(p.type for p in played if p.duration_ns is None)
    npu = sum(v for k, v in by_device.items() if k not in ("copy", "HCCL"))
    host = sum(f.seconds for f in fell)
    kernels = [p for p in timed if p.event.kind == records.LAUNCH]
    calibrated = sum(p.duration_ns or 0 for p in kernels if p.calibrated) / 1e9
    return {
        "kind": Kind.PREDICTED.value, "npu_s": npu, "npu_low_s": sum(p.low_ns for p in kernels) / 1e9, "npu_high_s": sum(p.high_ns for p in kernels) / 1e9,
        "calibrated_share": round(calibrated / npu, 4) if npu else None,
        "copies_s": by_device.get("copy", 0.0), "communication_s": by_device.get("HCCL", 0.0),
        "host_fallback_s": host, "host_fallback_kind": "measured on this machine's CPU",
        "by_device_s": dict(by_device), "timeline_s": (end - begin) / 1e9, "device_idle_s": max(0.0, (end - begin) / 1e9 - sum(by_device.values())), "unknown_kernels": dict(unknown),
    }


def _sections(simulation: Simulation, data: dict[str, Any], usage: Usage | None) -> list[Section]:
    mem = data["memory"]
    verdict = _("fits: {peak:.2f} GiB allocated, {reserved:.2f} GiB reserved of {capacity:.2f} GiB") if mem["fits"] else _(
        "does not fit: {peak:.2f} GiB allocated, {reserved:.2f} GiB reserved of {capacity:.2f} GiB when it ran out")
    status = {"finished": _("ran to its end"), "exit": _("called exit ({code}) {message}").format(code=simulation.exit_code, message=simulation.result.get("exit_message") or "").strip(), "error": _("stopped with an error"),
              "killed": _("the process ended by itself")}[simulation.status]
    rows = [
        (_("run"), status),
        (_("launches"), _("{n} kernels, {m} of them different").format(n=data["launches"], m=data["signatures"])),
        (_("fallbacks"), _("{n} calls of {m} operators on the host").format(
            n=sum(f["count"] for f in data["fallbacks"]), m=len({f["operator"] for f in data["fallbacks"]}))),
        (_("memory"), verdict.format(peak=mem["peak_allocated_bytes"] / _GIB, reserved=mem["peak_reserved_bytes"] / _GIB, capacity=mem["capacity_bytes"] / _GIB)),
        (_("host"), _("{s:.1f} s and {m:.0f} MB on this machine").format(s=simulation.seconds, m=simulation.host_bytes / 2**20)),
    ]
    time = data["time"]
    if time:
        rows.insert(3, (_("device time"), _("{npu:.3f} ms in kernels ({low:.3f} to {high:.3f}), {copies:.3f} ms in copies, {hccl:.3f} ms in collectives; predicted, "
                                            "{share:.0%} of it by a calibrated model").format(
            npu=time["npu_s"] * 1e3, low=time["npu_low_s"] * 1e3, high=time["npu_high_s"] * 1e3, copies=time["copies_s"] * 1e3, hccl=time["communication_s"] * 1e3,
            share=time["calibrated_share"] or 0.0)))
    else:
        rows.insert(3, (_("device time"), _("unknown: there is no cost model for these kernels here")))
    sections: list[Section] = [Facts("", tuple(rows))]
    if simulation.cann:
        sections.append(Text(_("CANN is installed in {path} and was used; kernels really ran.").format(path=simulation.cann)))
    if data["kernels"]:
        table: tuple[tuple[Any, ...], ...] = tuple((k["type"], k["count"], f"{k['time_ms']:.3f}" if k["time_ms"] is not None else "-") for k in data["kernels"])
        sections.append(Table(_("Kernels"), (_("type"), _("launches"), _("ms, predicted")), table, top=15))
    if data["launches_by_step"]:
        table = tuple((s, c.get("forward", 0), c.get("backward", 0), c.get("optimizer", 0)) for s, c in data["launches_by_step"].items())
        sections.append(Table(_("Launches by step"), (_("step"), _("forward"), _("backward"), _("optimizer")), table, top=5))
    if data["fallbacks"]:
        table = tuple((f["operator"], f["count"], f"{f['file']}:{f['line']}") for f in data["fallbacks"])
        sections.append(Table(_("On the host"), (_("operator"), _("calls"), _("line")), table))
    if mem["at_peak"]:
        table = tuple((k, f"{v / 2**20:.1f}") for k, v in mem["at_peak"].items())
        sections.append(Table(_("What holds the peak"), (_("what"), "MiB"), table))
        table = tuple((h["what"], f"{h['bytes'] / 2**20:.1f}", h["count"], h["module"] or "", f"{h['file']}:{h['line']}" if h["file"] else "") for h in mem["holders"])
        sections.append(Table(_("Largest holders"), (_("what"), "MiB", _("tensors"), _("module"), _("line")), table, top=8))
    if data["collectives"]:
        table = tuple((c["name"], c["ranks"], c["count"], f"{c['bytes'] / 2**20:.2f}", f"{c['time_ms']:.3f}" if c["time_ms"] is not None else "-") for c in data["collectives"])
        sections.append(Table(_("Collectives"), (_("name"), _("ranks"), _("calls"), "MiB", _("ms, predicted")), table))
    if data["assumptions"]:
        table = tuple((f"{a['file']}:{a['line']}", a["value"], a["count"]) for a in data["assumptions"])
        sections.append(Table(_("Assumptions"), (_("line"), _("value"), _("times")), table))
    if simulation.mode == "fake" and data["assumed_zero_reads"]:
        sections.append(Text(_("In fake mode kernels compute nothing: {n} values that were read back were taken as zero.").format(n=data["assumed_zero_reads"])))
    if usage and len(usage.curve) > 1:
        start = usage.curve[0][0]
        sections.append(Chart(_("Allocated memory"), {
            "data": [{"type": "scatter", "mode": "lines", "x": [(t - start) / 1e6 for t, _b in usage.curve], "y": [b / 2**20 for _t, b in usage.curve], "name": "MiB"}],
            "layout": {"xaxis": {"title": {"text": _("host time, ms")}}, "yaxis": {"title": {"text": "MiB"}}},
        }))
    for note in simulation.result.get("notes") or []:
        text = _note(note)
        if text:
            sections.append(Text(text))
    return sections


def _note(note: str) -> str:
    if note == "task-queue-2":
        return _("TASK_QUEUE_ENABLE=2 was taken as 1: with 2, kernels cannot be told apart by the operator that asked for them.")
    if note == "no-allocator-trace":
        return _("This torch_npu's allocator cannot be watched, so there is no memory over time.")
    if note.startswith("spawn-"):
        return _("The script spawned {n} processes; rank 0 ran here and stands for all.").format(n=note.removeprefix("spawn-"))
    if note == "gloo-as-hccl":
        return _("The process group asked for gloo; the simulated HCCL stands in for it.")
    return ""
