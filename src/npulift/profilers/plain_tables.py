"""Plain tables that people's own scripts write, known by their columns: step times, collectives by rank, expert loads, samples."""

from __future__ import annotations

import polars as pl

from npulift.profilers import csv_text
from npulift.profilers.csv_text import Text
from npulift.profilers.evidence import Part, conform
from npulift.profilers.head import Head

NAME = "plain table"

_STEP = ("step", "iteration", "iter", "stepid", "batch", "request", "run", "image", "call", "epoch", "index")
_SECONDS = {"seconds": 1.0, "s": 1.0, "times": 1.0, "time(s)": 1.0, "steptimes": 1.0, "steptime(s)": 1.0, "durations": 1.0, "duration(s)": 1.0, "sec": 1.0,
            "secs": 1.0, "elapseds": 1.0, "elapsed(s)": 1.0, "latencys": 1.0, "latency(s)": 1.0, "stepseconds": 1.0, "secondsperstep": 1.0, "timesec": 1.0,
            "ms": 1e-3, "timems": 1e-3, "time(ms)": 1e-3, "steptimems": 1e-3, "steptime(ms)": 1e-3, "durationms": 1e-3, "duration(ms)": 1e-3, "elapsedms": 1e-3,
            "latencyms": 1e-3, "latency(ms)": 1e-3, "milliseconds": 1e-3, "stepms": 1e-3,
            "us": 1e-6, "timeus": 1e-6, "time(us)": 1e-6, "durationus": 1e-6, "duration(us)": 1e-6, "steptimeus": 1e-6}
_DATA = {"dataseconds": 1.0, "datas": 1.0, "datatimes": 1.0, "datatime(s)": 1.0, "dataloads": 1.0, "datawaits": 1.0, "datams": 1e-3, "datatimems": 1e-3,
         "datatime(ms)": 1e-3, "dataloadms": 1e-3, "datawaitms": 1e-3}
_CHIP = ("chip", "soc", "socversion", "device", "npu", "devicename", "model", "hardware")
_COMPILED = ("kernelmetafiles", "kernelmeta", "compiledfiles", "compiledkernels", "cachefiles", "kernels", "kernelmetacount", "files", "compiles", "compilations")


def accepts(head: Head) -> bool:
    """A step with a time, a rank with a wait, or an expert with tokens."""
    return _is_steps(head) or _is_ranks(head) or _is_experts(head)


def _is_steps(head: Head) -> bool:
    return head.any(*_STEP) and head.any(*_SECONDS)


def _is_ranks(head: Head) -> bool:
    return head.any("rank", "rankid", "globalrank") and any(c.startswith(("wait", "transit", "elapse", "computing", "compute", "free")) for c in head.columns)


def _is_experts(head: Head) -> bool:
    return head.any("expert", "expertid") and head.any("tokens", "tokencount", "count", "load", "numtokens")


def read(head: Head) -> Part:
    """Read what the columns say."""
    text = csv_text.read(head.path)
    if not len(text):
        return Part(NAME, truncated=text.truncated)
    tables: dict[str, pl.DataFrame] = {}
    if _is_ranks(head):
        tables.update(_ranks(text))
    elif _is_experts(head):
        tables["experts"] = conform("experts", text.frame.select(
            rank=text.integer("rank", "rankid"), layer=text.integer("layer", "layerid"), expert=text.integer("expert", "expertid"),
            tokens=text.number("tokens", "tokencount", "numtokens", "load", "count")).drop_nulls(["expert", "tokens"]))
    else:
        factor = next((n, f) for n, f in _SECONDS.items() if text.has(n))
        data = next(((n, f) for n, f in _DATA.items() if text.has(n)), None)
        tables["step_times"] = conform("step_times", text.frame.select(
            rank=text.integer("rank", "rankid"), step=text.integer(*_STEP), seconds=text.number(factor[0]) * factor[1], chip=text.text(*_CHIP),
            compiled_files=text.integer(*_COMPILED), data_seconds=text.number(data[0]) * data[1] if data else pl.lit(None, dtype=pl.Float64),
        ).drop_nulls("seconds"))
    return Part(NAME, tables=tables, truncated=text.truncated, records=len(text))


def _ms(text: Text, *stems: str) -> pl.Expr:
    """A duration in ms, whatever unit its column names."""
    for stem in stems:
        for suffix, factor in (("ms", 1.0), ("(ms)", 1.0), ("us", 1e-3), ("(us)", 1e-3), ("s", 1e3), ("(s)", 1e3), ("", 1.0)):
            if text.has(stem + suffix):
                return text.number(stem + suffix) * factor
    return pl.lit(None, dtype=pl.Float64)


def _ranks(text: Text) -> dict[str, pl.DataFrame]:
    """Collectives by rank, and the step split where the same rows carry it."""
    rank = text.integer("rank", "rankid", "globalrank")
    frame = text.frame.select(
        rank=rank, step=text.integer(*_STEP), name=text.text("op", "opname", "name", "collective", "operator"), group=text.text("group", "groupname"),
        elapse_ms=_ms(text, "elapse", "elapsetime", "elapsed", "duration", "time"), transit_ms=_ms(text, "transit", "transittime", "transfer"),
        wait_ms=_ms(text, "wait", "waittime"), synchronization_ms=_ms(text, "synchronization", "synchronizationtime", "sync"),
        idle_ms=_ms(text, "idle", "idletime"),
        computing=_ms(text, "computing", "compute", "computetime", "computingtime"), free=_ms(text, "free", "freetime"),
        bandwidth=text.number("bandwidth(gb/s)", "bandwidthgbs", "bandwidth", "busbw", "gbs"), size=text.number("sizemb", "size(mb)", "transitsize(mb)", "transitsizemb", "mb"),
    ).drop_nulls("rank")
    tables = {}
    collectives = frame.filter(pl.any_horizontal(pl.col("elapse_ms", "transit_ms", "wait_ms").is_not_null()))
    if len(collectives):
        tables["collectives"] = conform("collectives", collectives)
    split = frame.filter(pl.col("computing").is_not_null() | pl.col("free").is_not_null()).unique(subset=["rank", "step"], keep="first", maintain_order=True)
    if len(split):
        tables["steps"] = conform("steps", split.select("rank", "step", computing_us=pl.col("computing") * 1e3, free_us=pl.col("free") * 1e3))
    speeds = frame.filter(pl.col("bandwidth").is_not_null())
    if len(speeds):
        tables["transports"] = conform("transports", speeds.select("rank", "step", "name", "group", size_mb="size", time_ms="transit_ms", bandwidth_gbs="bandwidth"))
    return tables
