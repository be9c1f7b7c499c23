"""advise: read what profilers wrote and say what to do first, with the figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from npulift import advice
from npulift.findings import Finding
from npulift.messages import _
from npulift.profilers.evidence import Evidence
from npulift.profilers.overview import by_step, overview
from npulift.profilers.reading import read
from npulift.profilers.view import View
from npulift.report import charts
from npulift.report.document import Chart, Facts, Report, Section, Table, Text


def advise(
    paths: list[str | Path] | str | Path, against: str | Path | None = None, *, active: int | None = None, chip: str | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Advice over files and folders of profilers.

    against: another profile to compare with.   active: recorded steps of the schedule.   chip: e.g. 'Ascend910B2', where no file says it.
    Raises NpuliftError when nothing can be read.
    """
    given = [Path(p) for p in ([paths] if isinstance(paths, str | Path) else paths)]
    evidence = read(given, progress, active=active, chip=chip)
    progress(_("looking for causes"))
    view = View(evidence)
    found = _ordered(advice.findings(view))
    facts = overview(view)
    data: dict[str, Any] = {"overview": facts, "files": [_file(f) for f in evidence.files], "notes": list(evidence.profile.notes)}
    sections = _sections(view, facts, found)
    if against is not None:
        from npulift.profilers.comparing import compare, comparison_sections

        other = View(read([Path(against)], progress))
        difference = compare(view, other)
        data["comparison"] = difference
        sections = [*comparison_sections(difference), *sections]
    return Report(
        "advise", _("Where the time goes: {what}").format(what=", ".join(p.name or str(p) for p in given[:3]) + (" ..." if len(given) > 3 else "")), {"input": [str(p) for p in given]},
        findings=tuple(found), data=data, sections=tuple(sections),
    )


def _ordered(findings: Any) -> list[Finding]:
    """Most severe first, then by what would be saved on the critical path."""
    def saving(finding: Finding) -> float:
        what_if = finding.details.get("what_if")
        return max(finding.cost_share or 0.0, float(what_if["share_of_wall"]) if what_if else 0.0)

    return sorted(findings, key=lambda f: (-f.severity.rank, -saving(f), f.code))


def _file(file: Any) -> dict[str, Any]:
    return {"file": str(file.path), "reader": file.reader, "rank": file.rank, "bytes": file.bytes, "records": file.records, "truncated": file.truncated}


def _ms(us: float | None) -> str:
    return "-" if us is None else f"{us / 1e3:.3f} ms"


def _sections(view: View, facts: dict[str, Any], found: list[Finding]) -> list[Section]:
    evidence = view.evidence
    cycles = bool(view.meta.get("cycles"))
    sections: list[Section] = [Facts("", tuple(_head(view, facts)))]
    for note in evidence.profile.notes[:10]:
        sections.append(Text(note))
    split = facts["split"]
    if facts["wall_us"] and not cycles:
        names = {"computing_us": _("computing"), "communication_exposed_us": _("communication, not overlapped"), "communication_overlapped_us": _("communication, overlapped"),
                 "copy_us": _("copies"), "free_us": _("free (the device does nothing)")}
        rows = tuple((names[k], _ms(v), f"{100 * v / facts['wall_us']:.1f}%") for k, v in split.items() if k in names and v)
        sections.append(Table(_("Where the time goes"), (_("part"), _("time"), _("share of the wall time")), rows))
    devices = {"npu": "NPU", "ai_cpu": "AI CPU", "host": _("host"), "memcpy": "Memcpy", "communication": _("communication")}
    if any(facts["shares"].values()) and view.is_ascend:
        sections.append(Table(_("Device time by what runs it"), (_("device"), _("share")), tuple((devices[k], f"{100 * v:.1f}%") for k, v in facts["shares"].items() if v)))
    savings = [(f, f.details["what_if"]) for f in found if "what_if" in f.details and f.details["what_if"]["saving_us_per_step"] > 0]
    if savings and not cycles:
        savings.sort(key=lambda p: -p[1]["saving_us_per_step"])
        sections.append(Table(
            _("What if it fell away (by critical path: only time beside which nothing else runs; savings do not add up)"), (_("cause"), _("saves a step"), _("a step takes"), _("it would take")),
            tuple((f"{f.code} {f.name}", _ms(w["saving_us_per_step"]), _ms(w["step_us"]), _ms(w["step_us_without"])) for f, w in savings), top=12))
    if facts["top_operators"]:
        unit = _("cycles") if cycles else "us"
        table = tuple((o["type"], o.get("device") or "", (o.get("shapes") or "")[:60], o.get("dtypes") or "", o["count"], f"{o['total_us'] * (1000 if cycles else 1):.1f}", f"{100 * o['share']:.1f}%",
                      f"{o['file']}:{o['line']}" if o.get("file") else "") for o in facts["top_operators"])
        sections.append(Table(_("Operators by time"), (_("type"), _("device"), _("shapes"), _("dtypes"), _("count"), unit, _("share"), _("line")), table, top=15))
    sections += _charts(view)
    return sections


def _head(view: View, facts: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [(_("read from"), _("{source} ({n} files, {events} events)").format(source=facts["source"], n=len(view.evidence.files), events=facts["events"])), (_("times are"), str(view.kind))]
    if view.evidence.ranks:
        ranks = view.evidence.ranks
        rows.append((_("ranks"), str(len(ranks)) + (f" ({ranks[0]}-{ranks[-1]})" if len(ranks) > 1 else f" ({ranks[0]})")))
    if view.step_numbers:
        rows.append((_("steps"), str(len(view.step_numbers))))
    return rows


def _charts(view: View) -> list[Section]:
    made: list[Section] = []
    device = view.device
    shown = device if device.height else view.operators
    if (device.height and view.has_timeline) or (not device.height and view.operators.height):
        first = view.evidence.ranks[:4]
        part = shown.filter(pl.col("rank").is_null() | pl.col("rank").is_in(first)) if first else shown
        figure, left_out = charts.timeline(part)
        if figure["data"]:
            made.append(Chart(_("Timeline"), figure, _("Drag to zoom, double-click to zoom out.") + (" " + _("The {n} shortest events are left out.").format(n=left_out) if left_out else "")))
    if shown.height:
        made.append(Chart(_("Time by module and operator"), charts.icicle(shown)))
    points = _points(view)
    if points:
        made.append(Chart(_("Roofline"), charts.roofline(points), _("Matrix products: arithmetic intensity from their shapes, each operand counted once.")))
    steps = by_step(view)
    if len(steps) > 1:
        made.append(Chart(_("Steps"), charts.split_by_step(steps)))
    for name, title, make in (("memory", _("Memory over time"), charts.memory_over_time), ("samples", _("Clock, power and load over time"), charts.samples_over_time)):
        table = view.table(name)
        if table.height:
            figure = make(table)
            if figure["data"]:
                made.append(Chart(title, figure))
    links = view.table("links")
    if links.height > 3:
        made.append(Chart(_("Bandwidth of links"), charts.link_matrix(links)))
    waits = view.table("collectives").filter(pl.col("rank").is_not_null()).group_by("rank").agg(pl.col("wait_ms").sum()).sort("rank")
    if waits.height > 2:
        made.append(Chart(_("Waiting in collectives by rank"), charts.waits_by_rank(waits["rank"].to_list(), waits["wait_ms"].to_list())))
    return made


_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "float64": 8}


def _points(view: View) -> list[dict[str, Any]]:
    """Products of two-dimensional operands (and batches of them) whose output shape is known: 2 m n k operations."""
    rows = view.kernels.filter(pl.col("type").fill_null("").str.contains("MatMul") & pl.col("input_shapes").is_not_null() & pl.col("output_shapes").is_not_null() & (pl.col("duration_ns") > 0))
    made = []
    for r in rows.group_by("type", "input_shapes", "output_shapes", "input_dtypes").agg(ns=pl.col("duration_ns").mean()).sort("ns", descending=True).head(200).iter_rows(named=True):
        try:
            a, b = ([int(x) for x in s.split(",")] for s in r["input_shapes"].split(";")[:2])
            out = [int(x) for x in r["output_shapes"].split(";")[0].split(",")]
        except ValueError:
            continue
        if len(a) < 2 or len(b) < 2 or len(a) != len(b) or len(out) < 2 or len(a) > 3:
            continue
        inner = [x for x in a[-2:] if x in b[-2:]]
        m, n = out[-2], out[-1]
        k = a[-1] if a[-2] == m else a[-2]
        if k not in inner or m not in a[-2:] or n not in b[-2:]:
            continue
        batch = out[0] if len(out) == 3 else 1
        width = _BYTES.get((r["input_dtypes"] or "").split(";")[0], 2)
        made.append({"name": f"{r['type']} [{r['input_shapes']}]", "flops": 2.0 * batch * m * n * k, "bytes": float(batch * width * (m * k + k * n + m * n)), "seconds": r["ns"] / 1e9})
    return made


__all__ = ["Evidence", "advise"]
