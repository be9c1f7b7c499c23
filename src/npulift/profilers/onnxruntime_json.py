"""ONNX Runtime's profile: a JSON array of sessions and nodes; the kernels' times with their execution provider."""

from __future__ import annotations

from typing import Any

import polars as pl

from npulift.profilers.evidence import Part
from npulift.profilers.head import Head
from npulift.profilers.json_stream import Ending, pieces, tolerant

NAME = "ONNX Runtime profile"


def accepts(head: Head) -> bool:
    """Session or node events of ONNX Runtime."""
    return head.is_json and b'"ph"' in head.data and (b"model_loading" in head.data or b"session_initialization" in head.data or b"_kernel_time" in head.data)


def read(head: Head) -> Part:
    """Kernels only; fences and the session's own spans are left out, but each model_run is a step."""
    ending = Ending()
    rows: list[dict[str, Any]] = []
    runs = 0
    for text in pieces(head.path, ending):
        for event in tolerant(text, ending):
            args: dict[str, Any] = event["args"] if isinstance(event.get("args"), dict) else {}
            name, span = str(event.get("name", "")), event.get("dur")
            if not isinstance(span, int | float) or isinstance(span, bool):
                continue
            start = event.get("ts")
            base = {"start_ns": int(start * 1000) if isinstance(start, int | float) else None, "duration_ns": int(span * 1000)}
            if name == "model_run":
                rows.append({**base, "name": f"model_run#{runs}", "category": "step", "device": "CPU", "step": runs})
                runs += 1
            elif event.get("cat") == "Node" and args.get("op_name") and (name.endswith("_kernel_time") or "provider" in args):
                provider = str(args.get("provider", ""))
                device = provider.removesuffix("ExecutionProvider").upper() or "CPU"
                given = args.get("input_type_shape")
                pairs = [next(iter(p.items())) for p in given if isinstance(p, dict) and p] if isinstance(given, list) else []
                rows.append({**base, "name": name.removesuffix("_kernel_time"), "type": str(args["op_name"]), "category": "kernel", "device": device,
                             "input_shapes": ";".join(",".join(map(str, s)) if isinstance(s, list) else str(s) for _t, s in pairs),
                             "input_dtypes": ";".join(str({"float": "float32", "double": "float64"}.get(t, t)) for t, _s in pairs)})
    frame = pl.DataFrame(rows, infer_schema_length=None, strict=False) if rows else None
    if frame is not None and runs and "start_ns" in frame.columns:
        frame = _number_runs(frame)
    return Part(NAME, frame, meta={"runs": max(1, runs), "providers": sorted({str(r["device"]) for r in rows if r["category"] == "kernel"})}, truncated=ending.truncated,
                records=len(rows))


def _number_runs(frame: pl.DataFrame) -> pl.DataFrame:
    """A node belongs to the run in whose span it lies (ONNX Runtime writes a run's span after its nodes)."""
    marks = frame.filter(pl.col("category") == "step").select("start_ns", mark="step").sort("start_ns")
    return frame.sort("start_ns").join_asof(marks, on="start_ns", strategy="backward").with_columns(step=pl.col("mark")).drop("mark")
