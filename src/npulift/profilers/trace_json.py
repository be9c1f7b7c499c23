"""trace_view.json, msprof_*.json, torch.profiler and Kineto traces (plain or gzip): Chrome trace events, streamed.

Ascend writes a bare array with `ts` as decimal text; Kineto an object with 'traceEvents' and numbers. Lanes of an Ascend trace come from
'process_name' records (Python, CANN, Ascend Hardware, HCCL or Communication, Overlap Analysis, AI Core Freq); Kineto says it in `cat`.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from npulift.errors import NpuliftError
from npulift.measured import Kind
from npulift.messages import _, ngettext
from npulift.profilers import json_stream
from npulift.profilers.evidence import Part, conform
from npulift.profilers.head import Head
from npulift.profilers.json_stream import Ending
from npulift.profilers.trace_events import events_of, samples_of

NAME = "trace"
PARALLEL_FROM = 96 << 20  # bytes; below this a second process costs more than it saves


class Args(msgspec.Struct, gc=False, rename={
    "task_type": "Task Type", "stream_id": "Stream Id", "dims": "Input Dims", "types": "Input type", "stack": "Call stack", "external": "External id",
    "connection": "connection_id", "queue": "correlation_id", "modules": "Module Hierarchy", "size_b": "size(B)", "size_mb": "size(MB)", "mhz": "MHz",
    "labels": "labels", "file_stack": "Call Stack",
}):
    """The few arguments of an event that are used."""

    name: Any = None
    labels: Any = None
    task_type: Any = None
    stream_id: Any = None
    stream: Any = None
    dims: Any = None
    types: Any = None
    stack: Any = None
    file_stack: Any = None
    external: Any = None
    connection: Any = None
    queue: Any = None
    correlation: Any = None
    modules: Any = None
    bytes: Any = None
    size_b: Any = None
    size_mb: Any = None
    mhz: Any = None


class Event(msgspec.Struct, gc=False):
    """An event of the Chrome trace format, reduced to what is used."""

    ph: str = ""
    name: Any = None
    cat: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    id: Any = None
    args: Args | None = None


_DECODER = msgspec.json.Decoder(list[Event])
_COLUMNS = {"name": pl.Utf8, "cat": pl.Utf8, "pid": pl.Utf8, "tid": pl.Utf8, "start_ns": pl.Int64, "duration_ns": pl.Int64, "task_type": pl.Utf8, "stream": pl.Int64,
            "dims": pl.Utf8, "types": pl.Utf8, "stack": pl.Utf8, "correlation": pl.Int64, "modules": pl.Utf8, "bytes": pl.Int64}
_LAUNCHES = {"start_ns": pl.Int64, "launch_ns": pl.Int64}
# Marks of torch_npu's task queue: what they tell, the launch flows tell more exactly. They are a quarter of an Ascend trace.
_QUEUE_MARKS = ("enqueue", "dequeue")


def accepts(head: Head) -> bool:
    """JSON whose beginning holds events with a phase."""
    if not head.is_json:
        return False
    start = head.data[:65536]
    return b'"ph"' in start or b'"traceEvents"' in start or head.name.startswith("trace_view")


def read(head: Head) -> Part:
    """Read all complete events. Large files are read by as many processes as there are processors, at most four."""
    path = head.path
    size = path.stat().st_size
    ranges: list[tuple[int, int | None]] = [(0, None)]
    if size >= PARALLEL_FROM and not head.gzip:
        ranges = json_stream.split(path, min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))
    results = _in_processes(path, ranges) if len(ranges) > 1 else [_range(path, 0, None)]
    raw = pl.concat([r["frame"] for r in results])
    lanes: dict[str, str] = {}
    counters = []
    for r in results:
        lanes.update(r["lanes"])
        counters += r["counters"]
    launches = pl.concat([r["launches"] for r in results])
    truncated = any(r["truncated"] for r in results)
    bad = sum(r["bad"] for r in results)
    count = sum(r["count"] for r in results)
    header = results[0]["header"]
    meta = _header(header, results[-1]["trailer"])
    events = events_of(raw, lanes, launches)
    tables = {}
    samples = samples_of(counters, lanes)
    if samples:
        tables["samples"] = conform("samples", pl.DataFrame(samples, strict=False))
    notes = []
    if truncated:
        notes.append(ngettext("{file} ends early: {n} complete event was loaded, the rest is missing.",
                              "{file} ends early: {n} complete events were loaded, the rest is missing.", count).format(file=path.name, n=count))
    if bad:
        notes.append(ngettext("{n} broken event was skipped.", "{n} broken events were skipped.", bad).format(n=bad))
    meta["trace"] = True
    if events.height:
        meta["ascend" if any(v in ("Ascend Hardware", "CANN") for v in lanes.values()) or (b"aten::" not in head.data and head.name.startswith("trace_view")) else "kineto"] = True
    kind = Kind(meta["npulift_kind"]) if meta.get("npulift_kind") in {k.value for k in Kind} else Kind.MEASURED
    return Part(NAME, events, tables, meta=meta, notes=tuple(notes), truncated=truncated, records=count, kind=kind)


def _header(header: bytes, trailer: bytes) -> dict[str, Any]:
    """Facts that Kineto writes around the events: device, versions, distributed info."""
    found: dict[str, Any] = {}
    for text in (header.rstrip(b", \r\n\t") + b"}" if header.startswith(b"{") else b"", b"{" + trailer.strip().lstrip(b",") if trailer.strip(b" \r\n\t}") else b""):
        try:
            value = json.loads(text) if text else {}
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            found.update(value)
    meta: dict[str, Any] = {}
    info = found.get("distributedInfo")
    if isinstance(info, dict):
        if isinstance(info.get("rank"), int):
            meta["rank"] = info["rank"]
        if isinstance(info.get("world_size"), int):
            meta["world_size"] = info["world_size"]
    devices = found.get("deviceProperties")
    if isinstance(devices, list) and devices and isinstance(devices[0], dict):
        meta["device"] = str(devices[0].get("name", ""))
    if isinstance(found.get("npulift_kind"), str):
        meta["npulift_kind"] = found["npulift_kind"]
    return meta


def _in_processes(path: Path, ranges: list[tuple[int, int | None]]) -> list[dict[str, Any]]:
    """One process a range; what they find comes back through Arrow files, since pickling millions of rows would cost more than parsing."""
    with tempfile.TemporaryDirectory() as folder:
        targets = [Path(folder) / f"{i}.arrow" for i in range(len(ranges))]
        try:
            with ProcessPoolExecutor(len(ranges) - 1, mp_context=multiprocessing.get_context("spawn")) as pool:
                futures = [pool.submit(_to_file, path, a, b, t) for (a, b), t in zip(ranges[1:], targets[1:], strict=True)]
                results = [_range(path, *ranges[0])]  # the first range here, while the others are under way
                for future, target in zip(futures, targets[1:], strict=True):
                    result = future.result()
                    result["frame"] = pl.read_ipc(target.read_bytes())
                    target.unlink()
                    result["launches"] = pl.read_ipc(target.with_suffix(".launches").read_bytes())
                    results.append(result)
            return results
        except (BrokenProcessPool, OSError, RuntimeError):
            return [_range(path, 0, None)]


def _to_file(path: Path, start: int, stop: int | None, target: Path) -> dict[str, Any]:
    result = _range(path, start, stop)
    result["frame"].write_ipc(target)
    result["launches"].write_ipc(target.with_suffix(".launches"))
    result["frame"] = result["launches"] = None
    return result


def _range(path: Path, start: int, stop: int | None) -> dict[str, Any]:
    ending = Ending()
    frames: list[pl.DataFrame] = []
    lanes: dict[str, str] = {}
    launches: list[pl.DataFrame] = []
    counters: list[tuple[Any, ...]] = []
    count = 0
    was = gc.isenabled()
    gc.disable()
    try:
        for text in json_stream.pieces(path, ending, start, stop):
            for events in _decode(text, ending):
                count += len(events)
                frames.append(_columns([e for e in events if e.ph == "X" and e.cat not in _QUEUE_MARKS]))
                starts = [e for e in events if e.ph == "s" and e.cat in ("async_npu", "ac2g")]
                if starts:
                    ids = _series("start_ns", [e.id for e in starts], pl.Int64)
                    launches.append(pl.DataFrame([ids, _stamps([e.ts for e in starts]).alias("launch_ns")]))
                for e in [e for e in events if e.ph in ("M", "C") and e.args is not None]:
                    if e.ph == "C":
                        counters.append((e.name, str(e.pid), e.ts, e.args.mhz))  # type: ignore[union-attr]
                    elif e.name == "process_name":
                        lanes[str(e.pid)] = str(e.args.name)  # type: ignore[union-attr]
    except OSError as error:
        raise NpuliftError(_("{path} cannot be read: {reason}.").format(path=path, reason=error.strerror or error)) from error
    finally:
        if was:
            gc.enable()
    frame = pl.concat(frames) if frames else pl.DataFrame(schema=_COLUMNS)
    flows = pl.concat(launches) if launches else pl.DataFrame(schema=_LAUNCHES)
    return {"frame": frame, "lanes": lanes, "launches": flows, "counters": counters, "truncated": ending.truncated, "bad": ending.bad, "count": count,
            "header": ending.header[:1 << 20], "trailer": ending.trailer[:1 << 20]}


def _decode(text: bytes, ending: Ending):  # type: ignore[no-untyped-def]
    """Lists of events out of a piece: all at once, or one by one where the piece is not clean."""
    try:
        yield _DECODER.decode(b"[" + text + b"]")
        return
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeDecodeError):
        pass
    made = []
    for value in json_stream.tolerant(text, ending):
        args = value.get("args")
        if not isinstance(args, dict):
            value = {k: v for k, v in value.items() if k != "args"}
        try:
            made.append(msgspec.convert(value, Event, strict=False))
        except (msgspec.ValidationError, RecursionError, OverflowError):
            ending.bad += 1
    yield made


def _columns(rows: list[Event]) -> pl.DataFrame:
    """Complete events ('X') as a table; start and duration in ns."""
    args = [e.args or _NO_ARGS for e in rows]
    return pl.DataFrame([
        _series("name", [e.name for e in rows], pl.Utf8), _series("cat", [e.cat for e in rows], pl.Utf8), _identity("pid", [e.pid for e in rows]),
        _identity("tid", [e.tid for e in rows]), _stamps([e.ts for e in rows]).alias("start_ns"),
        (_series("duration_ns", [e.dur for e in rows], pl.Float64) * 1000).round(0).cast(pl.Int64, strict=False),
        _series("task_type", [a.task_type for a in args], pl.Utf8), _series("stream", [a.stream_id if a.stream_id is not None else a.stream for a in args], pl.Int64),
        _series("dims", [a.dims for a in args], pl.Utf8), _series("types", [a.types for a in args], pl.Utf8), _series("stack", [a.stack or a.file_stack for a in args], pl.Utf8),
        _series("correlation", [a.connection if a.connection is not None else a.correlation for a in args], pl.Int64),
        _series("modules", [a.modules for a in args], pl.Utf8), _series("bytes", [a.bytes if a.bytes is not None else a.size_b for a in args], pl.Int64),
    ])


def _identity(name: str, values: list[Any]) -> pl.Series:
    """Process and thread numbers, which may be text, as text."""
    try:
        return pl.Series(name, values, dtype=pl.Int64, strict=True).cast(pl.Utf8)
    except (TypeError, OverflowError, ValueError, pl.exceptions.PolarsError):
        return pl.Series(name, [None if v is None else str(v) for v in values], dtype=pl.Utf8)


def _stamps(values: list[Any]) -> pl.Series:
    """Microseconds, as decimal text (exact) or as numbers, in ns."""
    try:
        numbers = pl.Series(values, dtype=pl.Float64, strict=True)
        return (numbers * 1000).round(0).cast(pl.Int64, strict=False)
    except (TypeError, OverflowError, ValueError, pl.exceptions.PolarsError):
        pass
    text = pl.Series([v if type(v) is str else None if v is None else repr(v) for v in values], dtype=pl.Utf8)
    exact = (text.cast(pl.Decimal(38, 3), strict=False) * 1000).cast(pl.Int64, strict=False)
    if exact.null_count() > text.null_count():
        rough = (text.str.strip_chars().cast(pl.Float64, strict=False) * 1000).cast(pl.Int64, strict=False)
        return exact.fill_null(rough) if isinstance(rough, pl.Series) else exact
    return exact


_NO_ARGS = Args()


def _series(name: str, values: list[Any], dtype: Any) -> pl.Series:
    try:
        return pl.Series(name, values, dtype=dtype, strict=True)
    except (TypeError, OverflowError, ValueError, pl.exceptions.PolarsError):
        pass
    if dtype == pl.Utf8:
        return pl.Series(name, [v if v is None or type(v) is str else _text(v) for v in values], dtype=dtype)
    number = _integer if dtype == pl.Int64 else _number
    return pl.Series(name, [number(v) for v in values], dtype=dtype)


def _text(value: Any) -> str:
    """Lists as Ascend writes them: ',' between sizes, ';' between operands."""
    if isinstance(value, list):
        return ";".join(",".join(str(x) for x in v) if isinstance(v, list) else str(v) for v in value)
    return value if isinstance(value, str) else json.dumps(value)


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if number == number and abs(number) < 1e300 else None


def _integer(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if -(2**63) <= number < 2**63 else None
