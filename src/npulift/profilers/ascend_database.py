"""The .db form of the Ascend profilers (SQLite): kernels, collectives, framework operators, steps, memory, communication. Times in ns, memory in bytes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any
from urllib.parse import quote

import polars as pl

from npulift.errors import NpuliftError
from npulift.messages import _
from npulift.profilers.ascend_names import category, derive_types, formats, normal_dtypes, shapes
from npulift.profilers.evidence import Part, conform
from npulift.profilers.head import Head

NAME = "profiler database"


def accepts(head: Head) -> bool:
    """SQLite's magic."""
    return head.data.startswith(b"SQLite format 3")


def read(head: Head) -> Part:
    """Read the tables that are there; a damaged page ends the table it is in, and is told."""
    notes: list[str] = []
    frames: list[pl.DataFrame] = []
    tables: dict[str, pl.DataFrame] = {}
    meta: dict[str, Any] = {}
    records = 0
    truncated = False
    try:
        with closing(sqlite3.connect(f"file:{quote(str(head.path.resolve()))}?mode=ro&immutable=1", uri=True)) as db:
            db.text_factory = lambda b: b.decode("utf-8", errors="replace")
            have = {t: _columns(db, t) for (t,) in db.execute("select name from sqlite_master where type='table'")}
            for job in (_kernels, _collectives, _framework):
                try:
                    frame = job(db, have)
                except sqlite3.DatabaseError as error:
                    notes.append(_("{file}: {what} cannot be read in full ({reason}).").format(file=head.path.name, what=job.__name__.strip("_"), reason=error))
                    truncated = True
                    continue
                if frame is not None and frame.height:
                    frames.append(frame)
                    records += frame.height
            for name, job in (("memory", _memory), ("allocations", _allocations), ("steps", _steps), ("collectives", _times), ("links", _matrix)):
                try:
                    frame = job(db, have)
                except sqlite3.DatabaseError as error:
                    notes.append(_("{file}: {what} cannot be read in full ({reason}).").format(file=head.path.name, what=name, reason=error))
                    truncated = True
                    continue
                if frame is not None and frame.height:
                    tables[name] = conform(name, frame)
                    records += frame.height
            if {"rankId"} <= have.get("RANK_DEVICE_MAP", set()):
                ranks = [r for (r,) in db.execute("select rankId from RANK_DEVICE_MAP") if isinstance(r, int) and r >= 0]
                if len(ranks) == 1:
                    meta["rank"] = ranks[0]
            marks = _step_marks(db, have)
    except sqlite3.Error as error:
        raise NpuliftError(_("{path} cannot be read as a profiler's database ({reason}).").format(path=head.path, reason=error)) from error
    events = pl.concat(frames, how="diagonal_relaxed") if frames else None
    if events is not None and marks is not None:
        events = pl.concat([events, marks], how="diagonal_relaxed")
        steps = marks.select(start_ns="start_ns", mark="step", end=pl.col("start_ns") + pl.col("duration_ns")).sort("start_ns")
        events = events.drop("step").sort("start_ns").join_asof(steps, on="start_ns", strategy="backward").rename({"mark": "step"}).drop("end")
    return Part(NAME, events, tables, meta=meta, notes=tuple(notes), truncated=truncated, records=records)


def _columns(db: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in db.execute(f'pragma table_info("{table}")')}  # the name comes from the file's own catalogue


def _frame(db: sqlite3.Connection, query: str) -> pl.DataFrame:
    cursor = db.execute(query)
    names = [d[0] for d in cursor.description]
    chunks = []
    while rows := cursor.fetchmany(100_000):
        chunks.append(pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None, strict=False))
    return pl.concat(chunks, how="vertical_relaxed") if chunks else pl.DataFrame(schema=dict.fromkeys(names, pl.Null))


def _name(column: str) -> str:
    return f"(select value from STRING_IDS where id = {column})"


def _kernels(db: sqlite3.Connection, have: dict[str, set[str]]) -> pl.DataFrame | None:
    if "TASK" not in have or "COMPUTE_TASK_INFO" not in have or "STRING_IDS" not in have:
        return None
    info = have["COMPUTE_TASK_INFO"]
    blocks = next((c for c in ("blockNum", "blockDim") if c in info), None)
    pick = {"type": "opType", "device": "taskType", "input_shapes": "inputShapes", "input_dtypes": "inputDataTypes", "input_formats": "inputFormats",
            "output_shapes": "outputShapes", "output_dtypes": "outputDataTypes", "output_formats": "outputFormats", "state": "opState"}
    names = ", ".join(f"{_name('c.' + column)} as {alias}" for alias, column in pick.items() if column in info)
    frame = _frame(db, f"select {_name('c.name')} as name, {names}, t.startNs as start_ns, t.endNs - t.startNs as duration_ns, t.streamId as stream, "
                       f"t.taskId as task, t.connectionId as correlation{', c.' + blocks + ' as cores' if blocks else ''} "
                       "from TASK t join COMPUTE_TASK_INFO c on c.globalTaskId = t.globalTaskId")
    if frame.is_empty():
        return None
    for column in pick:
        if column not in frame.columns:
            frame = frame.with_columns(pl.lit(None, dtype=pl.Utf8).alias(column))
    frame = frame.with_columns(pl.col("name", *pick).cast(pl.Utf8, strict=False), pl.col("duration_ns", "start_ns").cast(pl.Int64, strict=False))
    frame = derive_types(frame.drop_nulls("name")).with_columns(input_shapes=shapes(pl.col("input_shapes")), output_shapes=shapes(pl.col("output_shapes")))
    for column in ("input_dtypes", "output_dtypes"):
        frame = normal_dtypes(frame, column)
    for column in ("input_formats", "output_formats"):
        frame = formats(frame, column)
    return frame.with_columns(category=category(), step=pl.lit(None, dtype=pl.Int64))


def _collectives(db: sqlite3.Connection, have: dict[str, set[str]]) -> pl.DataFrame | None:
    if "COMMUNICATION_OP" not in have or "STRING_IDS" not in have:
        return None
    kind = _name("opType") if "opType" in have["COMMUNICATION_OP"] else "null"
    frame = _frame(db, f"select {_name('opName')} as name, {kind} as type, startNs as start_ns, endNs - startNs as duration_ns from COMMUNICATION_OP")
    return frame.with_columns(device=pl.lit("HCCL"), category=pl.lit("communication"), step=pl.lit(None, dtype=pl.Int64)) if frame.height else None


def _framework(db: sqlite3.Connection, have: dict[str, set[str]]) -> pl.DataFrame | None:
    if "PYTORCH_API" not in have or "STRING_IDS" not in have:
        return None
    shape = _name("inputShapes") if "inputShapes" in have["PYTORCH_API"] else "null"
    frame = _frame(db, f"select {_name('name')} as name, cast(startNs as integer) as start_ns, cast(endNs as integer) - cast(startNs as integer) as duration_ns, "
                       f"{shape} as input_shapes from PYTORCH_API")
    return frame.with_columns(device=pl.lit("CPU"), category=pl.lit("operator"), step=pl.lit(None, dtype=pl.Int64)) if frame.height else None


def _step_marks(db: sqlite3.Connection, have: dict[str, set[str]]) -> pl.DataFrame | None:
    if "STEP_TIME" not in have:
        return None
    try:
        frame = _frame(db, "select id as step, startNs as start_ns, endNs - startNs as duration_ns from STEP_TIME")
    except sqlite3.DatabaseError:
        return None
    if frame.is_empty():
        return None
    return frame.with_columns(name=pl.lit("ProfilerStep#") + pl.col("step").cast(pl.Utf8), category=pl.lit("step"), device=pl.lit("CPU"))


def _memory(db: sqlite3.Connection, have: dict[str, set[str]]) -> pl.DataFrame | None:
    if "MEMORY_RECORD" not in have:
        return None
    component = _name("component") if "STRING_IDS" in have else "component"
    return _frame(db, f"select {component} as component, timestamp / 1000.0 as time_us, totalAllocated / 1048576.0 as allocated_mb, "
                       "totalReserved / 1048576.0 as reserved_mb from MEMORY_RECORD")


def _allocations(db: sqlite3.Connection, have: dict[str, set[str]]) -> pl.DataFrame | None:
    if "OP_MEMORY" not in have:
        return None
    name = _name("name") if "STRING_IDS" in have else "name"
    return _frame(db, f"select {name} as name, size / 1048576.0 as size_mb, allocationTime / 1000.0 as allocated_at_us, releaseTime / 1000.0 as released_at_us, "
                      "duration / 1000.0 as duration_us, allocationTotalAllocated / 1048576.0 as total_allocated_mb from OP_MEMORY where size > 0")


def _steps(db: sqlite3.Connection, have: dict[str, set[str]]) -> pl.DataFrame | None:
    if "StepTraceTime" not in have:
        return None
    prepare = "preparing" if "preparing" in have["StepTraceTime"] else "null"
    return _frame(db, "select cast(step as integer) as step, computing as computing_us, communication_not_overlapped as exposed_us, overlapped as overlapped_us, "
                      f"communication as communication_us, free as free_us, stage as stage_us, bubble as bubble_us, {prepare} as preparing_us from StepTraceTime")


def _times(db: sqlite3.Connection, have: dict[str, set[str]]) -> pl.DataFrame | None:
    if "CommAnalyzerTime" not in have:
        return None
    frame = _frame(db, "select hccl_op_name as name, group_name as 'group', start_timestamp as start_us, elapse_time as elapse_ms, transit_time as transit_ms, "
                       "wait_time as wait_ms, synchronization_time as synchronization_ms, idle_time as idle_ms, step as mark, type from CommAnalyzerTime")
    return frame.filter(~pl.col("name").str.starts_with("Total")).with_columns(
        p2p=pl.col("type") == "p2p", step=pl.col("mark").cast(pl.Utf8).str.extract(r"(\d+)").cast(pl.Int64, strict=False)) if frame.height else None


def _matrix(db: sqlite3.Connection, have: dict[str, set[str]]) -> pl.DataFrame | None:
    if "CommAnalyzerMatrix" not in have:
        return None
    frame = _frame(db, "select hccl_op_name as name, group_name as 'group', cast(src_rank as integer) as source, cast(dst_rank as integer) as destination, "
                       "transport_type as transport, transit_size as size_mb, transit_time as time_ms, bandwidth as bandwidth_gbs from CommAnalyzerMatrix")
    return frame.filter(pl.col("transport") != "LOCAL") if frame.height else None
