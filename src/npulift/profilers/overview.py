"""The overview as the vendor's tools give it: step split, shares by kind of device, top operators by type, shape and dtype."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import polars as pl

from npulift.profilers.view import View


def overview(view: View, top: int = 30) -> dict[str, Any]:
    """The figures as JSON types. Times in us; shares 0 to 1. Totals are over all ranks and steps unless a key says otherwise."""
    split = view.split
    wall = split.get("wall") or 0.0
    ranks = max(1, len(view.evidence.ranks))
    steps = view.step_count
    return {
        "kind": view.kind.value, "source": view.evidence.profile.source, "ranks": view.evidence.ranks, "steps": len(view.step_numbers) or None,
        "events": view.events.height, "device_busy_us": round(view.busy_ns / 1e3, 3), "wall_us": round(wall / 1e3, 3),
        "split": {f"{k}_us": round(v / 1e3, 3) for k, v in split.items()},
        "split_share": {k: round(v / wall, 4) for k, v in split.items() if wall and k != "wall"},
        "per_step": {f"{k}_us": round(v / 1e3 / steps / ranks, 3) for k, v in split.items()} if view.step_numbers else None,
        "shares": shares(view), "top_operators": top_operators(view, top),
    }


def shares(view: View) -> dict[str, float]:
    """Shares of all device time: NPU kernels, AI CPU kernels, host operators (kernels on a CPU beside an accelerator), copies, communication."""
    table = view.by_type.with_columns(pl.col("device").fill_null(""))
    ai_cpu = int(table.filter(pl.col("device").str.contains("(?i)^ai_?cpu"))["total_ns"].sum())
    host = int(table.filter(pl.col("device") == "CPU")["total_ns"].sum())
    copies = int(view.device.filter(pl.col("category") == "copy")["duration_ns"].sum() or 0)
    communication = int(view.communications["duration_ns"].sum() or 0)
    npu = int(table["total_ns"].sum() or 0) - ai_cpu - host
    whole = npu + ai_cpu + host + copies + communication
    parts = {"npu": npu, "ai_cpu": ai_cpu, "host": host, "memcpy": copies, "communication": communication}
    return {k: round(v / whole, 6) if whole else 0.0 for k, v in parts.items()}


def top_operators(view: View, top: int) -> list[dict[str, Any]]:
    """By type, shapes and dtypes: count, total, average, share of device time, and the line where it is known."""
    frame = view.device
    if frame.is_empty():
        if view.operators.height:
            return _host_operators(view.operators, top)
        sums = view.table("operators").sort("total_us", descending=True).head(top)
        whole = float(view.table("operators")["total_us"].sum() or 0) or 1.0
        if sums.height:
            return [{"type": r["type"], "device": r["device"], "count": r["count"], "total_us": r["total_us"], "average_us": r["avg_us"], "share": round(r["total_us"] / whole, 6)}
                    for r in sums.iter_rows(named=True)]
        return _framework(view, top)
    groups = frame.group_by("type", "device", "input_shapes", "input_dtypes").agg(
        count=pl.len(), total=pl.col("duration_ns").sum(), file=pl.col("file").drop_nulls().first(), line=pl.col("line").drop_nulls().first(),
        module=pl.col("module").drop_nulls().first(), cube=pl.col("cube_ratio").mean(), vector=pl.col("vector_ratio").mean(), transfer=pl.col("transfer_ratio").mean(),
    ).sort("total", descending=True).head(top)
    whole = int(frame["duration_ns"].sum()) or 1
    return [{
        "type": r["type"], "device": r["device"], "shapes": r["input_shapes"], "dtypes": r["input_dtypes"], "count": r["count"], "total_us": round(r["total"] / 1e3, 3),
        "average_us": round(r["total"] / 1e3 / r["count"], 3), "share": round(r["total"] / whole, 6), "file": r["file"], "line": r["line"], "module": r["module"],
        "cube_ratio": _round(r["cube"]), "vector_ratio": _round(r["vector"]), "transfer_ratio": _round(r["transfer"]),
    } for r in groups.iter_rows(named=True)]


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def self_times(operators: pl.DataFrame) -> pl.DataFrame:
    """Framework operators with `self_ns`: their time without the operators inside them, on the same thread."""
    frame = operators.filter(pl.col("start_ns").is_not_null()).sort("process" if "process" in operators.columns else "rank", "stream", "start_ns", -pl.col("duration_ns"), nulls_last=True)
    if frame.is_empty():
        return operators.with_columns(self_ns=pl.col("duration_ns"))
    starts, spans = frame["start_ns"].to_numpy(), frame["duration_ns"].to_numpy()
    threads = frame.select(pl.struct("rank", "stream").rank("dense"))["rank"].to_numpy()
    own = spans.astype(np.int64).copy()
    stack: list[tuple[int, int]] = []
    before = -1
    for i, (start, end, thread) in enumerate(zip(starts.tolist(), (starts + spans).tolist(), threads.tolist(), strict=True)):
        if thread != before:
            stack, before = [], thread
        while stack and stack[-1][1] <= start:
            stack.pop()
        if stack and end <= stack[-1][1]:
            own[stack[-1][0]] -= end - start
        stack.append((i, end))
    return frame.with_columns(self_ns=pl.Series(np.maximum(own, 0)))


def _host_operators(operators: pl.DataFrame, top: int) -> list[dict[str, Any]]:
    frame = self_times(operators)
    groups = frame.group_by("name", "input_shapes", "input_dtypes").agg(
        count=pl.len(), own=pl.col("self_ns").sum(), total=pl.col("duration_ns").sum(), file=pl.col("file").drop_nulls().first(), line=pl.col("line").drop_nulls().first(),
    ).sort("own", descending=True).head(top)
    whole = int(frame["self_ns"].sum()) or 1
    return [{"type": r["name"], "device": "CPU", "shapes": r["input_shapes"], "dtypes": r["input_dtypes"], "count": r["count"], "total_us": round(r["own"] / 1e3, 3),
             "average_us": round(r["own"] / 1e3 / r["count"], 3), "share": round(r["own"] / whole, 6), "file": r["file"], "line": r["line"]} for r in groups.iter_rows(named=True)]


def _framework(view: View, top: int) -> list[dict[str, Any]]:
    table = view.table("framework")
    if table.is_empty():
        return []
    groups = table.group_by("name", "input_shapes").agg(
        count=pl.len(), device=pl.col("device_self_us").sum(), host=pl.col("host_self_us").sum(), stack=pl.col("stack").drop_nulls().first()).sort("device", "host", descending=True).head(top)
    whole = float(table["device_self_us"].sum() or 0) or float(table["host_self_us"].sum() or 0) or 1.0
    on_device = float(table["device_self_us"].sum() or 0) > 0
    made = []
    for r in groups.iter_rows(named=True):
        match = re.search(r"([^\s;(]+\.py)\((\d+)\)", r["stack"] or "")
        value = r["device"] if on_device else r["host"]
        made.append({"type": r["name"], "device": "NPU" if on_device else "CPU", "shapes": r["input_shapes"], "count": r["count"], "total_us": round(value or 0, 3),
                     "average_us": round((value or 0) / r["count"], 3), "share": round((value or 0) / whole, 6), "host_self_us": round(r["host"] or 0, 3), "file": match.group(1) if match else None,
                     "line": int(match.group(2)) if match else None})
    return made


def by_step(view: View) -> list[dict[str, Any]]:
    """Each step's split in us, from the vendor's table, else from the events."""
    steps = view.table("steps").filter(pl.col("step").is_not_null())
    if steps.height and steps["rank"].n_unique() <= 1:
        return [{"step": r["step"], "computing_us": r["computing_us"], "exposed_us": r["exposed_us"], "overlapped_us": r["overlapped_us"], "free_us": r["free_us"], "preparing_us": r["preparing_us"]}
                for r in steps.sort("step").iter_rows(named=True)]
    if not view.step_numbers or len(view.evidence.ranks) > 1:
        return []
    made = view.device.filter(pl.col("step").is_not_null()).group_by("step").agg(
        computing_us=pl.col("duration_ns").filter(pl.col("category") == "kernel").sum() / 1e3, communication_us=pl.col("duration_ns").filter(pl.col("category") == "communication").sum() / 1e3,
        kernels=pl.len()).sort("step")
    return made.to_dicts()
