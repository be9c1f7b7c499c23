"""Plotly figures as dictionaries for report.document.Chart: timeline, share by module or type, roofline, memory over time, step split, link matrix."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import polars as pl

from npulift.messages import _

Figure = dict[str, Any]
COLOURS = {"kernel": "#2e90fa", "AI_CPU": "#d92d20", "communication": "#f79009", "copy": "#7a5af8", "operator": "#12b76a", "api": "#98a2b3", "sync": "#667085", "step": "#98a2b3",
           "gc": "#d92d20", "module": "#98a2b3", "host": "#98a2b3"}
MOST_BARS = 6000  # events drawn one by one; what is shorter is left out and said so


def timeline(events: pl.DataFrame, most: int = MOST_BARS) -> tuple[Figure, int]:
    """(figure, events left out): one line a queue, one bar an event; the longest `most` are drawn, as one trace a category, so that zooming stays smooth.

    events: rows of a Profile with start_ns, duration_ns, category, device, stream, rank, name.
    """
    frame = events.filter(pl.col("start_ns").is_not_null() & (pl.col("duration_ns") > 0))
    left_out = max(0, frame.height - most)
    if left_out:
        frame = frame.sort("duration_ns", descending=True).head(most)
    if frame.is_empty():
        return {"data": [], "layout": {}}, 0
    origin = int(frame["start_ns"].min())  # type: ignore[arg-type]
    frame = frame.sort("start_ns").with_columns(
        lane=pl.concat_str([pl.lit("rank ") + pl.col("rank").cast(pl.Utf8), _lane(), pl.lit(_("queue")) + " " + pl.col("stream").cast(pl.Utf8)], separator=" · ", ignore_nulls=True),
        group=pl.when(pl.col("device").fill_null("").str.contains("(?i)ai_?cpu")).then(pl.lit("AI_CPU")).otherwise(pl.col("category")))
    data = []
    for group in frame["group"].unique(maintain_order=True).to_list():
        part = frame.filter(pl.col("group") == group)
        text = [f"{n}<br>{d / 1e3:.1f} us" + (f"<br>[{s}]" if s else "") for n, d, s in zip(part["name"], part["duration_ns"], part["input_shapes"], strict=True)]
        data.append({
            "type": "bar", "orientation": "h", "name": group, "y": part["lane"].to_list(), "base": [round((s - origin) / 1e6, 6) for s in part["start_ns"]],
            "x": [round(d / 1e6, 6) for d in part["duration_ns"]], "text": text, "textposition": "none", "hovertemplate": "%{text}<br>%{base:.3f} ms<extra></extra>",
            "marker": {"color": COLOURS.get(group, "#667085"), "line": {"width": 0}},
        })
    lanes = sorted(set(frame["lane"].to_list()))
    layout = {"barmode": "overlay", "bargap": 0.25, "xaxis": {"title": {"text": "ms"}, "type": "linear"}, "yaxis": {"autorange": "reversed", "categoryorder": "array", "categoryarray": lanes},
              "height": 160 + 34 * len(lanes), "dragmode": "zoom", "hovermode": "closest", "legend": {"orientation": "h"}}
    return {"data": data, "layout": layout}, left_out


def _lane() -> pl.Expr:
    return (pl.when(pl.col("category") == "communication").then(pl.lit(_("communication"))).when(pl.col("category") == "copy").then(pl.lit(_("copies")))
            .when(pl.col("category").is_in(["operator", "api", "host", "module", "gc", "step"])).then(pl.lit(_("host"))).otherwise(pl.lit(_("device"))))


def icicle(events: pl.DataFrame) -> Figure:
    """Time by module path, then operator type; by device and type where no module is known."""
    modules = events.filter(pl.col("module").is_not_null() & (pl.col("module") != ""))
    paths: dict[tuple[str, ...], float] = {}
    if modules.height * 2 >= events.height > 0:
        table = events.with_columns(pl.col("module").fill_null("")).group_by("module", "type", "name").agg(ns=pl.col("duration_ns").sum())
        for m, t, n, ns in table.iter_rows():
            path = (*[p for p in re.split(r"[./]", m) if p], t or n)
            paths[path] = paths.get(path, 0.0) + ns
    else:
        for d, t, n, ns in events.group_by("device", "type", "name").agg(ns=pl.col("duration_ns").sum()).iter_rows():
            path = (d or "-", t or n or "-") if t == n or not t else (d or "-", t)
            paths[path] = paths.get(path, 0.0) + ns
    sums: dict[tuple[str, ...], float] = {}
    for path, ns in paths.items():
        for depth in range(len(path) + 1):
            sums[path[:depth]] = sums.get(path[:depth], 0.0) + ns
    kept = dict(sorted(sums.items(), key=lambda p: -p[1])[:600])
    ids = list(kept)
    return {
        "data": [{"type": "icicle", "ids": ["/".join(("all", *i)) for i in ids], "labels": [i[-1] if i else _("all") for i in ids], "parents": ["/".join(("all", *i[:-1])) if i else "" for i in ids],
                  "values": [round(kept[i] / 1e6, 6) for i in ids], "branchvalues": "total", "tiling": {"orientation": "v"}, "hovertemplate": "%{label}<br>%{value:.3f} ms<br>%{percentRoot}<extra></extra>"}],
        "layout": {"margin": {"t": 10, "l": 10, "r": 10, "b": 10}, "height": 420},
    }


def roofline(points: Sequence[dict[str, Any]], peak_flops: float | None = None, bandwidth: float | None = None) -> Figure:
    """Operators by arithmetic intensity and rate. points: name, flops, bytes, seconds. peak_flops (1/s) and bandwidth (bytes/s) draw the roof."""
    x = [p["flops"] / p["bytes"] for p in points]
    y = [p["flops"] / p["seconds"] / 1e9 for p in points]
    data: list[dict[str, Any]] = [{
        "type": "scatter", "mode": "markers", "x": x, "y": y, "text": [p["name"] for p in points], "hovertemplate": "%{text}<br>%{x:.2f} FLOP/byte<br>%{y:.1f} GFLOP/s<extra></extra>",
        "marker": {"size": [max(6, min(30, 4 + 2 * (p["seconds"] * 1e6) ** 0.3)) for p in points], "color": "#2e90fa", "opacity": 0.75}, "showlegend": False}]
    if peak_flops and bandwidth:
        edge = peak_flops / bandwidth
        low, high = min([*x, edge]) / 4, max([*x, edge]) * 4
        data.append({"type": "scatter", "mode": "lines", "x": [low, edge, high], "y": [low * bandwidth / 1e9, peak_flops / 1e9, peak_flops / 1e9], "line": {"color": "#d92d20"}, "name": _("roof"), "hoverinfo": "skip"})
    return {"data": data, "layout": {"xaxis": {"type": "log", "title": {"text": "FLOP/byte"}}, "yaxis": {"type": "log", "title": {"text": "GFLOP/s"}}, "hovermode": "closest"}}


def memory_over_time(table: pl.DataFrame) -> Figure:
    """Allocated and reserved MB over time by component. table: as npulift.profilers.evidence.TABLES['memory']."""
    frame = table.filter(pl.col("time_us").is_not_null()).sort("time_us")
    if frame.is_empty():
        return {"data": [], "layout": {}}
    origin = float(frame["time_us"].min())  # type: ignore[arg-type]
    data = []
    for component in frame["component"].unique(maintain_order=True).to_list():
        part = frame.filter(pl.col("component") == component)
        step = max(1, part.height // 5000)
        part = part.gather_every(step)
        for column, name in (("allocated_mb", _("allocated")), ("reserved_mb", _("reserved"))):
            if part[column].drop_nulls().len():
                data.append({"type": "scatter", "mode": "lines", "line": {"shape": "hv", "dash": "dot" if column == "reserved_mb" else "solid"}, "name": f"{component} {name}",
                             "x": [round((t - origin) / 1e3, 4) for t in part["time_us"]], "y": part[column].to_list()})
    return {"data": data, "layout": {"xaxis": {"title": {"text": "ms"}}, "yaxis": {"title": {"text": "MB"}, "rangemode": "tozero"}, "legend": {"orientation": "h"}}}


def samples_over_time(table: pl.DataFrame) -> Figure:
    """Clock, power, temperature, utilisation over time: one line a name, each on a scale of 0 to its highest value."""
    frame = table.filter(pl.col("time_us").is_not_null() & pl.col("value").is_not_null()).sort("time_us")
    if frame.is_empty():
        return {"data": [], "layout": {}}
    origin = float(frame["time_us"].min())  # type: ignore[arg-type]
    data = []
    for name in frame["name"].unique(maintain_order=True).to_list()[:12]:
        part = frame.filter(pl.col("name") == name)
        part = part.gather_every(max(1, part.height // 3000))
        unit = part["unit"].drop_nulls()
        data.append({"type": "scatter", "mode": "lines", "name": f"{name} ({unit[0]})" if len(unit) else name, "x": [round((t - origin) / 1e3, 3) for t in part["time_us"]], "y": part["value"].to_list()})
    return {"data": data, "layout": {"xaxis": {"title": {"text": "ms"}}, "legend": {"orientation": "h"}}}


def split_by_step(steps: Sequence[dict[str, Any]]) -> Figure:
    """A stacked bar a step. steps: 'step' and figures in us."""
    names = {"computing_us": _("computing"), "exposed_us": _("communication, not overlapped"), "communication_us": _("communication"), "free_us": _("free")}
    colours = {"computing_us": "#2e90fa", "exposed_us": "#f79009", "communication_us": "#f79009", "free_us": "#98a2b3"}
    data = [{"type": "bar", "name": n, "x": [str(s["step"]) for s in steps], "y": [(s.get(k) or 0) / 1e3 for s in steps], "marker": {"color": colours[k]}}
            for k, n in names.items() if any(s.get(k) for s in steps)]
    return {"data": data, "layout": {"barmode": "stack", "xaxis": {"title": {"text": _("step")}, "type": "category"}, "yaxis": {"title": {"text": "ms"}}, "legend": {"orientation": "h"}}}


def link_matrix(links: pl.DataFrame) -> Figure:
    """Bandwidth of each link, GB/s, source by destination. links: as TABLES['links']."""
    table = links.filter(pl.col("time_ms") > 0).group_by("source", "destination").agg(gbs=pl.col("size_mb").sum() / pl.col("time_ms").sum())
    ranks = sorted({*table["source"].to_list(), *table["destination"].to_list()})
    where = {r: i for i, r in enumerate(ranks)}
    grid: list[list[float | None]] = [[None] * len(ranks) for _r in ranks]
    for s, d, g in table.iter_rows():
        grid[where[s]][where[d]] = round(g, 3)
    return {"data": [{"type": "heatmap", "z": grid, "x": [str(r) for r in ranks], "y": [str(r) for r in ranks], "colorscale": "Viridis", "colorbar": {"title": {"text": "GB/s"}},
                      "hovertemplate": "%{y} -> %{x}<br>%{z} GB/s<extra></extra>"}],
            "layout": {"xaxis": {"title": {"text": _("to rank")}, "type": "category"}, "yaxis": {"title": {"text": _("from rank")}, "type": "category", "autorange": "reversed"}, "height": 460}}


def waits_by_rank(ranks: Sequence[int], waits: Sequence[float]) -> Figure:
    """Waiting time in collectives, ms, a bar a rank."""
    return {"data": [{"type": "bar", "x": [str(r) for r in ranks], "y": list(waits), "marker": {"color": "#f79009"}}],
            "layout": {"xaxis": {"title": {"text": _("rank")}, "type": "category"}, "yaxis": {"title": {"text": "ms"}}}}
