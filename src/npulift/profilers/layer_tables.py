"""Layer tables of inference compilers: OpenVINO counters, QNN's detailed profile, Vela's per-layer table, Rockchip's. Cycles stay cycles."""

from __future__ import annotations

import polars as pl

from npulift.measured import Kind
from npulift.messages import _
from npulift.profilers import csv_text
from npulift.profilers.csv_text import Text
from npulift.profilers.evidence import Part
from npulift.profilers.head import Head

NAME = "layer table"


def accepts(head: Head) -> bool:
    """By the columns of each."""
    return _openvino(head) or _qnn(head) or _vela(head)


def _openvino(head: Head) -> bool:
    return head.any("layername") and head.any("exectype", "layertype") and any(c.startswith(("realtime", "cputime")) for c in head.columns)


def _qnn(head: Head) -> bool:
    return head.has("time", "unitofmeasurement") or head.has("eventidentifier", "eventlevel")


def _vela(head: Head) -> bool:
    return head.any("opcycles", "npucycles") and head.any("name", "tfliteoperator", "nngoperator", "originaloperator", "operator")


def read(head: Head) -> Part:
    """Read whichever it is."""
    text = csv_text.read(head.path)
    if not len(text):
        return Part(NAME, truncated=text.truncated)
    if _openvino(head):
        return _read_openvino(text)
    if _qnn(head):
        return _read_qnn(text)
    return _read_vela(text)


def _read_openvino(text: Text) -> Part:
    """benchmark_app's counters report: real time by layer in ms, what did not run left out."""
    scale = 1e6 if text.first("realtime(ms)") else 1e3
    frame = text.frame.select(
        name=text.text("layername"), type=text.text("layertype"), state=text.text("execstatus"), implementation=text.text("exectype"),
        duration_ns=(text.number("realtime(ms)", "realtime(us)", "realtime") * scale).cast(pl.Int64, strict=False),
    ).filter(pl.col("name").is_not_null() & (pl.col("name") != "Total") & (pl.col("duration_ns").fill_null(0) > 0))
    frame = frame.with_columns(category=pl.lit("kernel"), device=pl.lit("OPENVINO"))
    return Part("OpenVINO counters", frame.drop("implementation", "state"), truncated=text.truncated, records=frame.height, meta={"device": "OpenVINO"})


def _read_qnn(text: Text) -> Part:
    """Rows whose level is NODE carry cycles; in simulation they follow the host's clock, so only their shares mean anything."""
    level = text.text("eventlevel").str.to_uppercase()
    unit = text.text("unitofmeasurement").str.to_uppercase()
    frame = text.frame.select(
        name=text.text("eventidentifier", "message"), level=level, unit=unit, value=text.number("time"), source=text.text("onnxsourceops", "sourceops"),
    ).filter(pl.col("value").is_not_null() & pl.col("name").is_not_null())
    nodes = frame.filter((pl.col("level").str.contains("NODE|SUB") | pl.col("name").str.contains(r"(?i)OpId_\d+")).fill_null(False))
    nodes = (nodes if nodes.height else frame).filter(pl.col("unit").str.contains("CYCLE|US|MS|NS").fill_null(False))
    cycles = pl.col("unit").str.contains("CYCLE")
    scale = pl.when(pl.col("unit").str.contains("MS")).then(1e6).when(pl.col("unit").str.contains("NS")).then(1.0).otherwise(1e3)
    nodes = nodes.with_columns(
        type=pl.col("name").str.replace(r":OpId_\d+.*$", "").str.replace(r"\s*\(cycles\)$", "").str.replace(r"^.*/", "").str.replace(r"[_\d]+$", ""),
        cycles=pl.when(cycles).then(pl.col("value").cast(pl.Int64, strict=False)),
        # one cycle is written as one nanosecond, so that shares come out; the note says so
        duration_ns=pl.when(cycles).then(pl.col("value")).otherwise(pl.col("value") * scale).cast(pl.Int64, strict=False),
        category=pl.lit("kernel"), device=pl.lit("HTP"),
    )
    return Part("QNN profile", nodes.select("name", "type", "cycles", "duration_ns", "category", "device"), records=nodes.height, truncated=text.truncated, kind=Kind.SIMULATED,
                meta={"device": "QNN HTP", "cycles": True}, notes=(_("Times are cycles; a profile made in the simulator tells shares, not the chip's speed."),))


def _read_vela(text: Text) -> Part:
    """Arm's own estimate by layer: cycles; a row without NPU cycles runs on the CPU."""
    cycles = text.number("opcycles", "npucycles", "totalcycles")
    frame = text.frame.select(
        name=text.text("name", "nngoperator"), type=text.text("tfliteoperator", "originaloperator", "nngoperator", "operator"), target=text.text("target"),
        cycles=cycles.cast(pl.Int64, strict=False),
    ).filter(pl.col("cycles").is_not_null())
    on_cpu = pl.col("target").str.to_uppercase() == "CPU"
    frame = frame.with_columns(duration_ns=pl.col("cycles"), category=pl.lit("kernel"), device=pl.when(on_cpu).then(pl.lit("CPU")).otherwise(pl.lit("ETHOS-U")),
                               name=pl.coalesce("name", "type"), type=pl.coalesce("type", "name"))
    return Part("Vela estimate", frame.drop("target"), records=frame.height, truncated=text.truncated, kind=Kind.VENDOR_ESTIMATE,
                meta={"device": "Ethos-U", "cycles": True}, notes=(_("Times are cycles of Arm's performance model; shares hold at any clock."),))
