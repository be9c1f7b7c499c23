"""Write a Profile as a Chrome trace, which Perfetto and TensorBoard open."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import IO, Any

import polars as pl

from npulift.files import atomic_file
from npulift.profile import Profile

# TensorBoard's profiler plug-in and Perfetto sort by these categories, which are torch.profiler's own.
_CATEGORIES = {"kernel": "kernel", "communication": "kernel", "copy": "gpu_memcpy", "operator": "cpu_op", "api": "cuda_runtime", "step": "user_annotation", "module": "user_annotation"}


def chrome_trace(profile: Profile, path: Path) -> int:
    """Write the events that have a start; returns how many. Times are us from the first event; a name ending in .gz is packed."""
    frame = profile.events.filter(pl.col("start_ns").is_not_null() & pl.col("duration_ns").is_not_null()).sort("start_ns")
    origin = int(frame["start_ns"][0]) if frame.height else 0
    with atomic_file(path) as temporary, (gzip.open(temporary, "wt", encoding="utf-8") if path.suffix == ".gz" else temporary.open("w", encoding="utf-8")) as file:
        _write(file, frame, origin, profile)  # type: ignore[arg-type]
    return frame.height


def _write(file: IO[str], frame: pl.DataFrame, origin: int, profile: Profile) -> None:
    head: dict[str, Any] = {"schemaVersion": 1, "baseTimeNanoseconds": origin, "npulift_kind": profile.kind.value, "npulift_source": profile.source, "displayTimeUnit": "ms"}
    file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
    lanes: dict[tuple[int, str], int] = {}
    first = True
    for row in frame.iter_rows(named=True):
        host = row["device"] in ("CPU", None) and row["category"] not in ("kernel", "communication", "copy")
        key = (row["rank"] or 0, "host" if host else "device")
        if key not in lanes:
            lanes[key] = len(lanes) + 1
            name = f"rank {key[0]} {key[1]}" if row["rank"] is not None else key[1]
            file.write(("" if first else ",\n") + json.dumps({"ph": "M", "name": "process_name", "pid": lanes[key], "tid": 0, "args": {"name": name}}))
            first = False
        args = {k: row[k] for k in ("type", "device", "input_shapes", "input_dtypes", "input_formats", "output_shapes", "step", "module", "wait_ns", "bytes", "cycles") if row[k] is not None}
        if row["file"]:
            args["Call stack"] = f"{row['file']}({row['line']})"
        event = {"ph": "X", "cat": _CATEGORIES.get(row["category"], "cpu_op"), "name": row["name"], "pid": lanes[key], "tid": row["stream"] if row["stream"] is not None else 0,
                 "ts": round((row["start_ns"] - origin) / 1e3, 3), "dur": row["duration_ns"] / 1e3, "args": args}
        file.write(",\n" + json.dumps(event))
    file.write("\n]}\n")
