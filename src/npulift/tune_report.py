"""The report of a tuning run: before and after, every trial with its reason, time by operator, error by output."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from npulift.capture import Capture
from npulift.changes import Trial
from npulift.findings import Finding
from npulift.measured import Measured
from npulift.messages import _, ngettext
from npulift.model import ModelSpec
from npulift.profile import Profile
from npulift.report.document import Chart, Facts, Report, Section, Table, Text
from npulift.targets.base import Placement, Score
from npulift.verify import Check, Reference
from npulift.workbench import Running


@dataclass(frozen=True)
class Outcome:
    """What a tuning run ended with. baseline: by contestant; placements, profiles: (before, after)."""

    spec: ModelSpec
    target: str
    goal: str
    out: Path
    capture: Capture
    findings: tuple[Finding, ...]
    trials: tuple[Trial, ...]
    baseline: dict[str, Measured]
    tuned: Measured | None
    check: Check
    from_disk: Check
    wanted: Reference
    before: Running
    after: Running
    placements: tuple[Placement | None, Placement | None]
    profiles: tuple[Profile | None, Profile | None]
    failures: dict[str, str]
    notes: tuple[str, ...]
    scores: dict[str, Score]


def make_report(o: Outcome) -> Report:
    """The report, with the JSON keys that the contract promises."""
    vs_eager, vs_best = speedups(o)
    kept = [t for t in o.trials if t.verdict == "kept"]
    return Report(
        "tune",
        _("{model} on {target}: {headline}").format(model=o.spec.name, target=o.target, headline=_headline(o, vs_eager, vs_best)),
        {"model": o.spec.origin or o.spec.name}, o.target,
        findings=o.findings, data=_data(o, vs_eager, vs_best), sections=tuple(_sections(o, vs_eager, vs_best, kept)),
    )


def speedups(o: Outcome) -> tuple[float | None, float | None]:
    """(against eager, against the best untuned contestant), of figures of the same kind only; None where there is none."""
    if o.tuned is None:
        return None, None
    same = {n: m for n, m in o.baseline.items() if m.kind is o.tuned.kind and m.device == o.tuned.device}
    if not same:
        return None, None
    ratios = {n: _ratio(m, o.tuned) for n, m in same.items()}
    return ratios.get("eager"), min(ratios.values())


def _ratio(other: Measured, tuned: Measured) -> float:
    """How many times as long the other takes: the median over rounds that both took part in, else the ratio of the medians."""
    if len(other.seconds) == len(tuned.seconds):
        return statistics.median(a / b for a, b in zip(other.seconds, tuned.seconds, strict=True))
    return other.median / tuned.median


def _headline(o: Outcome, vs_eager: float | None, vs_best: float | None) -> str:
    if o.tuned is not None and vs_eager is not None and vs_best is not None:
        return _("{ms:.2f} ms, {eager:.2f} times as fast as eager, {best:.2f} times as fast as the best untuned").format(
            ms=o.tuned.median * 1e3, eager=vs_eager, best=vs_best)
    plain = next((s for n, s in o.scores.items() if n != "tuned"), None)
    if plain is not None and "tuned" in o.scores:
        after = o.scores["tuned"]
        return _("{before:.6g} to {after:.6g} {unit} ({kind})").format(before=plain.value, after=after.value, unit=after.unit, kind=after.kind)
    return _("compiled")


def _data(o: Outcome, vs_eager: float | None, vs_best: float | None) -> dict[str, Any]:
    before, after = o.placements
    variant = o.after.built.variant
    return {
        "goal": o.goal,
        "baseline": {n: m.as_json() for n, m in o.baseline.items()},
        "tuned": o.tuned.as_json() if o.tuned else None,
        "speedup_vs_eager": vs_eager,
        "speedup_vs_best_untuned": vs_best,
        "scores": {n: {"value": s.value, "unit": s.unit, "kind": s.kind.value, "parts": s.parts} for n, s in o.scores.items()},
        "max_abs_error": o.from_disk.error,
        "relative_error": o.from_disk.relative,
        "error_by_output": list(o.from_disk.by_output),
        "metric": {"name": o.spec.metric_name, "before": o.wanted.metric, "after": o.from_disk.metric},
        "trials": [t.as_json() for t in o.trials],
        "applied": list(variant.applied),
        "runtime": variant.target,
        "options": {k: v for k, v in variant.options.items() if k != "calibration"},
        "bundle": str(o.out),
        "size_bytes": {"before": o.before.built.bytes, "after": o.after.built.bytes},
        "placement": {
            "npu_operators_before": before.accelerated if before else None, "cpu_operators_before": before.on_cpu if before else None,
            "npu_operators_after": after.accelerated if after else None, "cpu_operators_after": after.on_cpu if after else None,
        },
        "failures": o.failures,
        "notes": list(o.notes),
        "calibration_samples": len(o.spec.calibration) or None,
    }


def _sections(o: Outcome, vs_eager: float | None, vs_best: float | None, kept: list[Trial]) -> list[Section]:
    variant = o.after.built.variant
    facts = [
        (_("bundle"), str(o.out)),
        (_("runs on"), f"{variant.target} {_options(variant.options)}".strip()),
        (_("changes kept"), ", ".join(t.change for t in kept) or _("none: nothing beat what the compilers do by themselves")),
        (_("largest error"), _("{error:.3g} absolute, {relative:.2g} of the largest value (the bundle loaded from disk, against eager)").format(
            error=o.from_disk.error, relative=o.from_disk.relative)),
        (_("size"), _("{before:.1f} MB before, {after:.1f} MB after").format(before=o.before.built.bytes / 1e6, after=o.after.built.bytes / 1e6)),
    ]
    if o.wanted.metric is not None and o.from_disk.metric is not None:
        facts.insert(3, (o.spec.metric_name, _("{before:.4f} before, {after:.4f} after").format(before=o.wanted.metric, after=o.from_disk.metric)))
    before, after = o.placements
    if before is not None and after is not None:
        facts.append((_("operators"), _("{a} on the accelerator and {b} elsewhere before; {c} and {d} after ({source})").format(
            a=before.accelerated, b=before.on_cpu, c=after.accelerated, d=after.on_cpu, source=after.source)))
    sections: list[Section] = [Facts("", tuple(facts)), _contestants(o)]
    if o.scores:
        costs = tuple((n, f"{s.value:.6g}", s.unit, str(s.kind), ", ".join(f"{k} {v}" for k, v in s.parts.items())[:120]) for n, s in o.scores.items())
        sections.append(Table(_("By the vendor's model"), (_("program"), _("cost"), _("unit"), _("kind"), _("made of")), costs))
    rows = tuple((t.change, f"{t.expected_gain:.0%}", _verdict(t.verdict), t.reason) for t in o.trials)
    sections.append(Table(_("Trials"), (_("change"), _("expected gain"), _("verdict"), _("reason")), rows, top=60))
    sections += _operators(o)
    if len(o.from_disk.by_output) > 1:
        errors = tuple((str(i), f"{e:.3g}") for i, e in enumerate(o.from_disk.by_output))
        sections.append(Table(_("Error by output"), (_("output"), _("largest absolute error")), errors))
    lines = list(o.notes)
    lines += [_("{name} did not take part: {reason}").format(name=n, reason=r) for n, r in o.failures.items()]
    if any(t.change.startswith("int8") for t in o.trials) and not o.spec.calibration:
        lines.append(_("There were no calibration samples, so the evaluation or example inputs served."))
    if lines:
        sections.append(Text("\n".join(lines), _("Notes")))
    return sections


def _contestants(o: Outcome) -> Table:
    rows = []
    everyone = {**o.baseline, **({"tuned": o.tuned} if o.tuned else {})}
    for name, m in sorted(everyone.items(), key=lambda item: -item[1].median):
        same = o.tuned is not None and m.kind is o.tuned.kind and m.device == o.tuned.device
        ratio = f"{_ratio(m, o.tuned):.2f}" if o.tuned and same else "-"
        rows.append((name, f"{m.median * 1e3:.3f}", f"{m.spread:.1%}", ratio, str(m.kind), m.device))
    rounds = len(next(iter(o.baseline.values())).seconds) if o.baseline else 0
    note = ngettext("One interleaved run of {n} round; spread is the interquartile range over the median.",
                    "One interleaved run of {n} rounds; spread is the interquartile range over the median.", rounds).format(n=rounds)
    return Table(_("Contestants"), (_("contestant"), _("ms an inference"), _("spread"), _("times the tuned"), _("kind"), _("device")), tuple(rows), note)


def _operators(o: Outcome) -> list[Section]:
    sections: list[Section] = []
    traces = []
    for label, profile in ((_("before"), o.profiles[0]), (_("after"), o.profiles[1])):
        if profile is None or profile.events.is_empty():
            continue
        runs = max(1, int(profile.meta.get("runs", 1)))
        by_type = (
            profile.events.group_by("type").agg(pl.col("duration_ns").sum().alias("ns"), pl.len().alias("count")).sort("ns", descending=True)
        )
        total = int(by_type["ns"].sum()) or 1
        if label == _("after"):
            rows = tuple(
                (r["type"], r["count"] // runs, f"{r['ns'] / runs / 1e3:.1f}", f"{r['ns'] / total:.1%}") for r in by_type.iter_rows(named=True)
            )
            sections.append(Table(_("Time by operator type, after"), (_("operator"), _("calls"), _("us an inference"), _("share")), rows,
                                  _("{kind}, {source}").format(kind=profile.kind, source=profile.source), top=12))
        top = by_type.head(12)
        traces.append({"type": "bar", "name": label, "x": top["type"].to_list(), "y": [ns / runs / 1e3 for ns in top["ns"].to_list()]})
    if traces:
        figure = {"data": traces, "layout": {"barmode": "group", "yaxis": {"title": {"text": _("us an inference")}}}}
        sections.append(Chart(_("Time by operator type"), figure))
    names = [n for n in o.baseline] + (["tuned"] if o.tuned else [])
    boxes = [
        {"type": "box", "name": n, "y": [s * 1e3 for s in (o.tuned if n == "tuned" and o.tuned else o.baseline[n]).seconds], "boxpoints": "all"} for n in names
    ]
    sections.append(Chart(_("Every round of the final comparison"), {"data": boxes, "layout": {"showlegend": False, "yaxis": {"type": "log", "title": {"text": "ms"}}}}))
    return sections


def _verdict(verdict: str) -> str:
    return {"kept": _("kept"), "dropped": _("dropped"), "failed": _("failed"), "not-applicable": _("not applicable")}[verdict]


def _options(options: dict[str, Any]) -> str:
    return " ".join(f"{k}={v}" for k, v in options.items() if k != "calibration")
