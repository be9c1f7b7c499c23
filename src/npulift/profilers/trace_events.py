"""Chrome trace events to the rows of a Profile: what lane an event is in says what it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from npulift.profilers.ascend_names import category as ascend_category
from npulift.profilers.ascend_names import normal_dtypes, shapes, type_of

_KINETO = {  # Kineto's categories; source: torch.profiler's own traces
    "cpu_op": "operator", "user_annotation": "module", "gpu_user_annotation": "module", "kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "copy",
    "cuda_runtime": "api", "cuda_driver": "api", "privateuse1_runtime": "api", "python_function": "host", "overhead": "host", "cuda_sync": "sync", "enqueue": "host",
    "dequeue": "host", "ac2g": "host", "mtia_ccp_events": "kernel", "Trace": "host", "cpu_instant_event": "host",
}


def events_of(raw: pl.DataFrame, lanes: dict[str, str], launches: pl.DataFrame) -> pl.DataFrame:
    """Rows with the columns of a Profile's schema that a trace can fill. launches: start of a device event, start of its host operator (ns)."""
    if raw.is_empty():
        return raw.select("name").head(0)
    frame = raw.with_columns(lane=_lane(lanes)).filter((pl.col("duration_ns") >= 0) & pl.col("name").is_not_null())
    hardware = pl.col("lane") == "Ascend Hardware"
    device = (
        pl.when(pl.col("task_type").is_not_null()).then(pl.col("task_type").str.to_uppercase())
        .when(hardware).then(pl.lit("NPU")).when(pl.col("lane").is_in(["HCCL", "Communication"])).then(pl.lit("HCCL"))
        .when(pl.col("cat").is_in(["kernel", "gpu_memcpy", "gpu_memset"])).then(pl.lit("GPU")).otherwise(pl.lit("CPU"))
    )
    named = pl.col("name")
    category = (
        pl.when(named.str.starts_with("ProfilerStep#")).then(pl.lit("step"))
        .when(pl.col("lane") == "Overlap Analysis").then(pl.lit("overlap"))
        .when(pl.col("lane").is_in(["HCCL", "Communication"])).then(pl.lit("communication"))
        .when(hardware).then(ascend_category())
        .when((pl.col("lane") == "Python GC") | named.str.contains(r"(?i)^(python )?gc($|[ _:])")).then(pl.lit("gc"))
        .when(pl.col("lane") == "CANN").then(pl.lit("api"))
        .when(pl.col("cat").is_in(["kernel"]) & named.str.contains("(?i)nccl|hccl")).then(pl.lit("communication"))
        .otherwise(pl.col("cat").replace_strict(_KINETO, default=None, return_dtype=pl.Utf8))
        .fill_null(pl.lit("host"))
    )
    frame = frame.with_columns(device=device, type=pl.lit(None, dtype=pl.Utf8)).with_columns(category=category)
    # a GPU's or an NPU's own step marks repeat the host's
    frame = frame.filter((pl.col("category") != "step") | (pl.col("device") == "CPU"))
    kernels = frame.filter(pl.col("category").is_in(["kernel", "communication", "copy"]) & (pl.col("device") != "GPU"))["name"].unique().to_list()
    mapping = {n: type_of(n) for n in kernels}
    frame = frame.with_columns(
        type=pl.when(pl.col("category").is_in(["kernel", "communication", "copy"])).then(named.replace_strict(mapping, default=None, return_dtype=pl.Utf8)).fill_null(named),
        stream=pl.coalesce("stream", pl.col("tid").cast(pl.Int64, strict=False)), input_shapes=shapes(pl.col("dims")), input_dtypes=pl.col("types"),
        process=pl.col("pid").cast(pl.Int64, strict=False), step=pl.when(pl.col("category") == "step").then(named.str.extract(r"#(\d+)").cast(pl.Int64, strict=False)),
        file=pl.col("stack").str.extract(r"^([^\s()]+\.py)\(\d+\)"), line=pl.col("stack").str.extract(r"\.py\((\d+)\)").cast(pl.Int64, strict=False),
    )
    # the innermost frame that is the user's own: python_function events are named 'file.py(12): function'
    frame = frame.with_columns(module=pl.col("modules"))
    if frame["input_dtypes"].null_count() < frame.height:
        frame = normal_dtypes(frame, "input_dtypes")
    frame = _steps(frame)
    if launches.height:
        frame = _launched(frame, launches)
    return frame.drop("cat", "task_type", "dims", "types", "pid", "modules")


def _lane(lanes: dict[str, str]) -> pl.Expr:
    if not lanes:
        return pl.lit(None, dtype=pl.Utf8)
    return pl.col("pid").replace_strict(lanes, default=None, return_dtype=pl.Utf8)


def _steps(frame: pl.DataFrame) -> pl.DataFrame:
    """Give each event the step in whose span it starts; device work that runs on after the host's mark has ended belongs to that step too."""
    steps = frame.filter((pl.col("category") == "step") & pl.col("step").is_not_null() & pl.col("start_ns").is_not_null()).sort("start_ns")
    if steps.is_empty():
        return frame
    starts, ends = steps["start_ns"].to_numpy(), (steps["start_ns"] + steps["duration_ns"]).to_numpy()
    known = frame["start_ns"].fill_null(-(2**62)).to_numpy()
    at = np.searchsorted(starts, known, side="right") - 1
    on_host = (frame["device"] == "CPU").to_numpy()
    inside = (at >= 0) & ~(on_host & (known > ends[np.maximum(at, 0)]))
    return frame.with_columns(step=pl.Series(np.where(inside, steps["step"].to_numpy()[np.maximum(at, 0)], -(2**62)))).with_columns(
        step=pl.when(pl.col("step") > -(2**62)).then(pl.col("step")))


def _launched(frame: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """launch_ns of a device event: the start of the host operator that launched it (the ids of Ascend's flows are the device event's start in ns)."""
    table = launches.drop_nulls().sort("start_ns")
    if table.is_empty():
        return frame
    ids = table["start_ns"].to_numpy()
    known = frame["start_ns"].fill_null(-1).to_numpy()
    at = np.minimum(np.searchsorted(ids, known), len(ids) - 1)
    hit = (ids[at] == known) & (frame["device"] != "CPU").to_numpy()
    return frame.with_columns(launch_ns=pl.Series(np.where(hit, table["launch_ns"].to_numpy()[at], -1))).with_columns(launch_ns=pl.when(pl.col("launch_ns") >= 0).then(pl.col("launch_ns")))


def samples_of(counters: list[tuple[Any, ...]], lanes: dict[str, str]) -> dict[str, list[Any]]:
    """AI Core clock samples, MHz."""
    rows = [(n, t, m) for n, _p, t, m in counters if m is not None]
    if not rows:
        return {}
    return {"name": ["AI Core Freq"] * len(rows), "time_us": [float(t) for _n, t, _m in rows], "value": [float(m) for _n, _t, m in rows], "unit": ["MHz"] * len(rows)}
