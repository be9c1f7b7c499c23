"""The verb `buckets`: the best buckets for observed shapes, beside the rules of thumb, all by the same latency by size."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from npulift.compile import choose_for
from npulift.errors import NpuliftError
from npulift.loading import load_model
from npulift.messages import _, ngettext
from npulift.model import ModelSpec
from npulift.report.document import Chart, Facts, Report, Table
from npulift.shapes.choose import equal_steps, expected_cost, powers_of_two, single_maximum
from npulift.shapes.observed import Observed
from npulift.shapes.padding import dim_names, with_dims
from npulift.targets.base import find_target
from npulift.workbench import Workbench


def buckets(model: str | ModelSpec | tuple[Any, Any], target: str, shapes: Path | str | Observed, most: int, say: Callable[[str, float | None], None]) -> Report:
    """The report: chosen buckets, what they are expected to cost, and what other choices would cost. Raises NpuliftError for wrong input."""
    spec = with_dims(load_model(model))
    chosen = find_target(target)
    observed = shapes if isinstance(shapes, Observed) else Observed.read(shapes)
    names = dim_names(spec)
    if set(observed.dims) - set(names):
        raise NpuliftError(_("The shapes are of {columns}; the model's dims are {names}.").format(columns=", ".join(observed.dims), names=", ".join(names) or "-"))
    with tempfile.TemporaryDirectory() as folder, Workbench(Path(folder)) as bench:
        latency, choice = choose_for(spec, chosen, observed, most, bench, {}, say)
    ideal = float((observed.weights * [latency(tuple(map(int, s))) for s in observed.sizes]).sum())
    rivals = {
        "chosen": choice.buckets, "powers of two": powers_of_two(observed, most), "equal steps": equal_steps(observed, most), "single maximum": single_maximum(observed),
    }
    labels = {"chosen": _("chosen"), "powers of two": _("powers of two"), "equal steps": _("equal steps"), "single maximum": _("single maximum")}
    costs = {name: expected_cost(boxes, observed, latency) for name, boxes in rivals.items()}
    rows = [
        (labels[name], "  ".join("x".join(map(str, b)) for b in rivals[name]), f"{cost * 1e3:.3f}", f"{cost / costs['chosen']:.2f}", f"{_waste(rivals[name], observed):.1%}")
        for name, cost in costs.items()
    ]
    rows.append((_("every size exact"), _("one compilation each: {n}").format(n=len(observed.sizes)), f"{ideal * 1e3:.3f}", f"{ideal / costs['chosen']:.2f}", "0.0%"))
    table = Table(_("Choices"), (_("choice"), "x".join(observed.dims), _("ms expected"), _("times the chosen"), _("padding")), tuple(rows),
                  _("Latency by size is {kind} at {n} sizes and interpolated between them; padding is the share of elements that is padding.").format(
                      kind=latency.kind, n=len(latency.points)))
    gap = _("proved best") if choice.gap == 0 else _("at most {gap:.1%} above the best").format(gap=choice.gap)
    seen = int(observed.counts.sum())
    facts = Facts("", (
        (_("shapes"), ngettext("{n} seen, {m} distinct", "{n} seen, {m} distinct", seen).format(n=seen, m=len(observed.sizes))),
        (_("method"), f"{choice.method}, {gap}"),
        (_("compile"), "npulift compile MODEL --bucket " + ",".join("x".join(map(str, b)) for b in choice.buckets)),
    ))
    points = [{"sizes": dict(zip(latency.dims, box, strict=True)), "seconds": s} for box, s in latency.points]
    data = {
        "buckets": [dict(zip(observed.dims, b, strict=True)) for b in choice.buckets], "expected_s": costs, "every_size_exact_s": ideal, "gap": choice.gap,
        "method": choice.method, "coarse": choice.coarse, "kind": latency.kind.value, "latency": points, "device": latency.device,
    }
    return Report("buckets", _("Buckets for {model} on {target}").format(model=spec.name, target=target), {"model": spec.origin or spec.name}, target,
                  data=data, sections=(facts, table, *_charts(observed, latency.points, choice.buckets)))


def _waste(boxes: Any, observed: Observed) -> float:
    volumes = np.array([np.prod(b) for b in boxes], dtype=float)
    holds = (np.array(boxes)[None, :, :] >= observed.sizes[:, None, :]).all(axis=2)
    run = np.where(holds, volumes[None, :], np.inf).min(axis=1)
    return float(1 - (observed.weights * observed.sizes.prod(axis=1)).sum() / (observed.weights * run).sum())


def _charts(observed: Observed, points: Any, boxes: Any) -> list[Chart]:
    if len(observed.dims) != 1:
        return []
    name = observed.dims[0]
    figure = {
        "data": [
            {"type": "bar", "x": observed.sizes[:, 0].tolist(), "y": observed.counts.tolist(), "name": _("seen"), "yaxis": "y"},
            {"type": "scatter", "x": [p[0][0] for p in points], "y": [p[1] * 1e3 for p in points], "name": "ms", "yaxis": "y2", "mode": "lines+markers"},
        ],
        "layout": {
            "xaxis": {"title": {"text": name}}, "yaxis": {"title": {"text": _("seen")}}, "yaxis2": {"overlaying": "y", "side": "right", "title": {"text": "ms"}},
            "shapes": [{"type": "line", "x0": b[0], "x1": b[0], "y0": 0, "y1": 1, "yref": "paper", "line": {"dash": "dot"}} for b in boxes],
        },
    }
    return [Chart(_("Sizes, latency and buckets"), figure)]
