"""A table of layers that another tool made (a CSV with a score for each layer): the first big drop, its outliers, and what is only inherited."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npulift.errors import NpuliftError
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.report.document import Facts, Report, Table

_LAYER = ("layer", "name", "node", "node_name", "op", "op_name", "module", "tensor", "layer_name")
_COSINE = ("cosine", "cosine_similarity", "cos", "cos_sim", "cosine_sim", "similarity")
_RATIO = ("sqnr", "sqnr_db", "snr", "snr_db", "psnr", "psnr_db")
_ERROR = ("relative_error", "rel_err", "rel_error", "mse", "rmse", "l2", "max_abs_err", "max_abs_error", "max_err", "abs_err", "mae", "error")
_ABSMAX, _P99 = ("w_absmax", "weight_absmax", "absmax", "w_max", "max_abs_weight"), ("w_p99", "weight_p99", "p99", "w_percentile99", "w_p999")
OUTLIER = 8.0  # absmax over the 99th percentile from which on one scale a channel wastes most of a 4-bit range (a normal distribution of a large matrix has 1.5 to 2)
LIMIT_BYTES = 50_000_000


@dataclass(frozen=True)
class Row:
    """damage: 0 for the same, growing with the difference (1 - cosine, or a ratio of noise to signal).   outlier: absmax over p99 of the weights, None when not given."""

    layer: str
    damage: float
    score: float
    outlier: float | None
    weight_bits: str
    extra: dict[str, str]


def compare_table(path: Path) -> Report:
    """Report over such a file. Raises NpuliftError when it is no such table."""
    rows, score = read_rows(path)
    bad = [i for i, row in enumerate(rows) if is_drop(rows, i)]
    first = rows[bad[0]] if bad else None
    own = [rows[i] for i in bad if _own(rows, i)]
    inherited = [rows[i] for i in bad if not _own(rows, i)]
    findings = []
    if first is not None:
        findings.append(_finding(rows, first, own, inherited, score))
    data: dict[str, Any] = {
        "first_bad": None if first is None else {
            "module": first.layer, "operator": None, "file": None, "line": None, "reason": "outliers" if (first.outlier or 0) >= OUTLIER else "precision-loss",
            "score": first.score, "outlier_ratio": _short(first.outlier),
        },
        "score": score, "layers": [{"layer": r.layer, "score": r.score, "outlier_ratio": _short(r.outlier), "status": _status(r, own, inherited)} for r in rows],
        "keep_at_8_bit": recommended(rows, own), "inherited": [r.layer for r in inherited],
    }
    table = Table(_("Layers"), (_("layer"), score, _("outliers (absmax/p99)"), _("verdict")), tuple(
        (r.layer, f"{r.score:.4f}", "" if r.outlier is None else f"{r.outlier:.1f}", {"own": _("own"), "inherited": _("inherited"), "ok": ""}[_status(r, own, inherited)]) for r in rows))
    facts = Facts("", ((_("first big drop"), first.layer if first else _("none")), (_("keep at 8 bit first"), ", ".join(data["keep_at_8_bit"]) or "-"),
                       (_("inherited"), ", ".join(data["inherited"]) or "-")))
    return Report("compare", _("Layers of {file}").format(file=path.name), {"input": str(path)}, findings=tuple(findings), data=data, sections=(facts, table))


def read_rows(path: Path) -> tuple[list[Row], str]:
    """(rows in the order of the file, name of the score's column). Rows that cannot be read are left out; a file without a layer and a score column is refused."""
    if not path.exists():
        raise NpuliftError(_("There is no file {path}.").format(path=path))
    if path.stat().st_size > LIMIT_BYTES:
        raise NpuliftError(_("{path} is larger than 50 MB; that is no table of layers.").format(path=path))
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    delimiter = "\t" if "\t" in text.partition("\n")[0] else ";" if ";" in text.partition("\n")[0] and "," not in text.partition("\n")[0] else ","
    try:
        reader = csv.DictReader(text.splitlines(), delimiter=delimiter)
        fields = {(f or "").strip().lower(): f for f in reader.fieldnames or ()}
        records = [r for r in reader]
    except csv.Error as error:
        raise NpuliftError(_("{path} is not a CSV table ({error}).").format(path=path, error=error)) from error

    def column(names: tuple[str, ...]) -> str | None:
        return next((fields[n] for n in names if n in fields), None)

    layer, score = column(_LAYER), column(_COSINE) or column(_RATIO) or column(_ERROR)
    if layer is None or score is None:
        raise NpuliftError(_("{path} has no columns for a layer and a score (cosine, sqnr_db, relative_error or the like); it has {fields}.").format(
            path=path, fields=", ".join(fields) or "-"))
    kind = "cosine" if score == column(_COSINE) else "ratio" if score == column(_RATIO) else "error"
    absmax, p99, bits = column(_ABSMAX), column(_P99), column(("dtype_w", "w_bits", "weight_bits", "bits_w"))
    rows = []
    for record in records:
        value = _number(record.get(score))
        if value is None or not record.get(layer):
            continue
        damage = 1 - value if kind == "cosine" else 10 ** (-value / 20) if kind == "ratio" else abs(value)
        top, common = _number(record.get(absmax)) if absmax else None, _number(record.get(p99)) if p99 else None
        rows.append(Row(str(record[layer]).strip(), damage, value, top / common if top is not None and common else None, str(record.get(bits) or "") if bits else "", {}))
    if not rows:
        raise NpuliftError(_("{path} has no row with a number in the column {column}.").format(path=path, column=score))
    return rows, score


def _number(text: str | None) -> float | None:
    try:
        value = float(str(text).strip())
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def is_drop(rows: list[Row], index: int) -> bool:
    """Damage far above the best half of all layers, and large in itself (5 % for cosine)."""
    ordered = sorted(r.damage for r in rows)
    usual = ordered[(len(ordered) - 1) // 2] if len(ordered) > 2 else ordered[0]
    return rows[index].damage > max(0.05, 5 * min(usual, ordered[0] * 5 + 1e-9))


def _own(rows: list[Row], index: int) -> bool:
    """Own doing: the first drop, and later ones whose weights have outliers (without that column: those that are clearly worse than every drop before)."""
    earlier = [rows[i] for i in range(index) if is_drop(rows, i)]
    if not earlier:
        return True
    outlier = rows[index].outlier
    return outlier >= OUTLIER if outlier is not None else rows[index].damage > 2 * max(r.damage for r in earlier)


def recommended(rows: list[Row], own: list[Row]) -> list[str]:
    """Layers to keep at 8 bit first: all of the kind that caused a drop, and the output head."""
    kinds = {r.layer.rpartition(".")[2] for r in own}
    names = sorted({r.layer for r in rows if r.layer.rpartition(".")[2] in kinds}, key=[r.layer for r in rows].index)
    head = [r.layer for r in rows if r.layer.rpartition(".")[2].lower() in ("lm_head", "head", "classifier", "output", "fc_out")]
    return names + [h for h in head if h not in names] if names else []


def _status(row: Row, own: list[Row], inherited: list[Row]) -> str:
    return "own" if row in own else "inherited" if row in inherited else "ok"


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _finding(rows: list[Row], first: Row, own: list[Row], inherited: list[Row], score: str) -> Finding:
    before = rows[rows.index(first) - 1] if rows.index(first) else None
    message = _("The first big drop is at {layer}: {score} {value:.4g}").format(layer=first.layer, score=score, value=first.score)
    message += _(" (before: {value:.4g}).").format(value=before.score) if before else "."
    if first.outlier is not None:
        message += " " + _("Its weights have outliers: absmax/p99 = {ratio:.1f}, so one scale a channel spends its few steps on them.").format(ratio=first.outlier)
    for row in inherited:
        small = _(", its own weights have an outlier ratio of only {ratio:.1f}").format(ratio=row.outlier) if row.outlier is not None else ""
        message += " " + _("The error of {layer} is inherited from the layers before it{small}.").format(layer=row.layer, small=small)
    keep = ", ".join(recommended(rows, own)) or first.layer
    fix = _("Keep {layers} at 8 bit first, then use block-wise scales or a method that moves outliers (SpinQuant, SeqMSE, SmoothQuant) instead of plain min-max.").format(layers=keep)
    return Finding("NPU346", "quantisation-outliers" if (first.outlier or 0) >= OUTLIER else "layer-drop", Severity.WARNING, message, None, first.layer, fix,
                   details={"first_bad": first.layer, "outlier_ratio": _short(first.outlier), "own": [r.layer for r in own], "inherited": [r.layer for r in inherited],
                            "keep_at_8_bit": recommended(rows, own)})
