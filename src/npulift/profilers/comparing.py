"""Compare two profiles: the difference of their step times, attributed until it adds up to the whole."""

from __future__ import annotations

from typing import Any

import polars as pl

from npulift.errors import NpuliftError
from npulift.messages import _
from npulift.profilers.overview import self_times
from npulift.profilers.view import View
from npulift.report.document import Facts, Section, Table

PARTS = ("computing", "communication_exposed", "copy", "free")


def compare(new: View, old: View) -> dict[str, Any]:
    """Per step and rank, us: the whole, its parts, and the computing part by operator type and shape. Differences add up: what no match explains is 'other'.

    Raises NpuliftError for figures of different kinds, which are never compared.
    """
    if new.kind != old.kind:
        raise NpuliftError(_("One profile is {a}, the other {b}: figures of different kinds are not compared.").format(a=new.kind, b=old.kind))
    a, b = _per_step(new), _per_step(old)
    whole = a["wall"] - b["wall"]
    parts = {p: round(a[p] - b[p], 3) for p in PARTS}
    rest = whole - sum(parts.values())
    operators = _operators(new, old)
    explained = sum(o["difference_us"] for o in operators)
    return {
        "kind": new.kind.value, "unit": "us a step", "steps": [new.step_count, old.step_count], "wall_us": round(a["wall"], 3), "against_us": round(b["wall"], 3), "difference_us": round(whole, 3),
        "ratio": round(a["wall"] / b["wall"], 4) if b["wall"] else None, "parts": {**parts, "other": round(rest, 3)},
        "operators": operators[:50], "operators_beyond_the_first_50_us": round(sum(o["difference_us"] for o in operators[50:]), 3), "operators_difference_us": round(explained, 3),
        "computing_overlap_us": round(parts["computing"] - explained, 3),
    }


def _per_step(view: View) -> dict[str, float]:
    ranks = max(1, len(view.evidence.ranks))
    scale = 1e3 * view.step_count * ranks
    split = view.split
    if not split.get("wall") and view.operators.height:
        own = float(self_times(view.operators)["self_ns"].sum())
        split = {"computing": own, "wall": own}
    return {p: split.get(p, 0.0) / scale for p in (*PARTS, "wall")}


def _operators(new: View, old: View) -> list[dict[str, Any]]:
    """Matched by type and shapes; where the shapes are unknown on a side, by type."""
    tables = []
    shaped = all(v.kernels.height and v.kernels["input_shapes"].null_count() < v.kernels.height for v in (new, old))
    for view in (new, old):
        frame = view.kernels if view.kernels.height else self_times(view.operators).with_columns(type=pl.col("name"), duration_ns=pl.col("self_ns")) if view.operators.height else None
        scale = 1e3 * view.step_count * max(1, len(view.evidence.ranks))
        if frame is None:
            frame = view.by_type.select("type", shapes=pl.lit(""), us=pl.col("total_ns") / scale, count=pl.col("count") / view.step_count).group_by("type", "shapes").agg(pl.col("us", "count").sum())
        else:
            keys = pl.col("input_shapes").fill_null("") if shaped else pl.lit("")
            frame = frame.with_columns(shapes=keys, type=pl.col("type").fill_null(pl.col("name"))).group_by("type", "shapes").agg(
                us=pl.col("duration_ns").sum() / scale, count=pl.len() / view.step_count)
        tables.append(frame)
    joined = tables[0].join(tables[1], on=["type", "shapes"], how="full", coalesce=True, suffix="_old").with_columns(pl.col("us", "us_old", "count", "count_old").fill_null(0.0))
    joined = joined.with_columns(difference_us=pl.col("us") - pl.col("us_old")).sort(pl.col("difference_us").abs(), descending=True)
    return [{"type": r["type"], "shapes": r["shapes"], "us": round(r["us"], 3), "against_us": round(r["us_old"], 3), "count": r["count"], "against_count": r["count_old"],
             "difference_us": round(r["difference_us"], 3)} for r in joined.iter_rows(named=True)]


def comparison_sections(data: dict[str, Any]) -> list[Section]:
    """The comparison for people."""
    names = {"computing": _("computing"), "communication_exposed": _("communication, not overlapped"), "copy": _("copies"), "free": _("free"), "other": _("other")}
    rows = [(_("a step takes"), _("{a} us against {b} us ({d} us, {r}x)").format(a=f"{data['wall_us']:.1f}", b=f"{data['against_us']:.1f}", d=f"{data['difference_us']:+.1f}", r=data["ratio"]))]
    rows += [(names[k], f"{v:+.1f} us") for k, v in data["parts"].items() if abs(v) >= 0.05]
    table = tuple((o["type"], o["shapes"][:60], f"{o['count']:g}", f"{o['against_count']:g}", f"{o['us']:.1f}", f"{o['against_us']:.1f}", f"{o['difference_us']:+.1f}") for o in data["operators"] if o["difference_us"])
    return [Facts(_("Difference"), tuple(rows)), Table(_("Difference by operator, us a step"), (_("type"), _("shapes"), _("count"), _("against"), "us", _("against"), _("difference")), table)]
