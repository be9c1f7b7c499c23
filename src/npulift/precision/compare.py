"""compare: where the numbers first go wrong, layer by layer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch

from npulift.capture import Capture
from npulift.errors import NpuliftError
from npulift.findings import Finding, Severity
from npulift.loading import load_model
from npulift.measured import Kind
from npulift.messages import _
from npulift.model import ModelSpec
from npulift.precision.formats import Format, find_format
from npulift.precision.layers import Comparing, Layer, first_bad, worst
from npulift.precision.values import graph_of, inputs_of
from npulift.report.document import Facts, Report, Section, Table
from npulift.rules.families import computes_in_float16, family, saturates_by_default
from npulift.targets.base import Target, find_target
from npulift.tracing import capture as capture_model

RUNS_HERE = ("openvino", "onnxruntime", "cpu", "qnn")


def compare(model: str | ModelSpec | tuple[Any, Any], target: str = "openvino", *, precision: str = "", threshold: float | None = None, run: bool = True) -> Report:
    """Compare a model with itself in a precision, and with what the target gives where that runs here.

    precision: '' takes what the target computes in.   threshold: relative error (L2) from which on an operator counts as bad; '' of the format.
    Raises NpuliftError when the model cannot be exported or run.
    """
    if isinstance(model, str) and model.lower().endswith((".csv", ".tsv")):
        from npulift.precision.layer_table import compare_table

        return compare_table(Path(model))
    chosen = find_target(target)
    spec = load_model(model)
    seen = capture_model(spec, eager=False)
    if seen.exported is None or seen.draft:
        raise NpuliftError(_("{model} cannot be exported, so it cannot be compared operator by operator: {reason}. See npulift check and npulift rewrite.").format(
            model=spec.name, reason=seen.export_error.splitlines()[0][:200]), exit_code=1)
    if any(t.device.type == "meta" for t in (*spec.tensors, *spec.module.parameters())):
        raise NpuliftError(_("{model} is on the meta device: it has shapes but no values to compare.").format(model=spec.name))
    form = _format(chosen, precision)
    findings: list[Finding] = []
    sections: list[Section] = []
    data: dict[str, Any] = {"precision": form.name if form else None, "reference": "float32", "first_bad": None, "layers": [], "target_layers": []}
    bad: Layer | None = None
    kind: Kind | None = None
    if form is not None:
        layers, outputs = imitate(seen, form, threshold)
        bad, kind = first_bad(layers), Kind.SIMULATED
        data |= {"layers": [layer.as_json() for layer in layers], "outputs": outputs, "kind": kind.value, "threshold": threshold or form.threshold}
        sections += _sections(layers, form, bad, outputs)
    if run and family(chosen) in RUNS_HERE and not chosen.missing():
        from npulift.precision.target_layers import target_layers

        limit = threshold if threshold is not None else form.threshold if form else 1e-3
        try:
            real = target_layers(seen, chosen, form.name if form else "", limit)
        except NpuliftError as error:
            findings.append(Finding("NPU349", "target-not-compared", Severity.WARNING, str(error)))
        else:
            real_kind = chosen.run_kind if chosen.run_kind is not None else Kind.SIMULATED
            data["target_layers"] = [layer.as_json() for layer in real]
            data["target_kind"] = real_kind.value
            sections.append(_table(_("{target} against eager, at the borders of modules ({kind})").format(target=target, kind=real_kind.value), [r for r in real if r.status != "ok"] or real[-5:]))
            found = next((layer for layer in real if layer.status != "ok"), None)
            if found is not None and bad is None:
                bad, kind = found, real_kind
    if bad is not None and kind is not None:
        if not bad.caused and data["layers"]:
            source = max(layers[: layers.index(bad) + 1], key=lambda layer: layer.own) if bad in layers else bad
            data["largest_own_error_before"] = {**_place(source), "own_error": source.own}
        data["first_bad"] = {**_place(bad), "reason": bad.status, "explanation": explain(bad, form), "caused": bad.caused, "kind": kind.value,
                             "inherited_by": _followers(data["layers"], bad)}
        findings.insert(0, _finding(bad, form, kind))
    rows = [
        (_("reference"), _("eager in float32 (halves of the model itself computed in float32)")),
        (_("precision"), _("{name}, imitated on the CPU: float32 accumulation, every result rounded ({kind})").format(name=form.name, kind=Kind.SIMULATED.value) if form else _(
            "as the target computes")),
        (_("first bad"), f"{bad.operator} {bad.location or ''} {bad.module}: {explain(bad, form)}" if bad else _("none")),
    ]
    return Report("compare", _("{model} on {target}: where the numbers go wrong").format(model=spec.name, target=target), {"model": spec.origin or spec.name}, target,
                  findings=tuple(findings), data=data, sections=(Facts("", tuple(rows)), *sections))


def _format(target: Target, precision: str) -> Format | None:
    if precision:
        return find_format(precision, saturates=saturates_by_default(target))
    if family(target) == "ethos-u":
        return find_format("int8")
    if computes_in_float16(target) or family(target) == "ascend":
        return find_format("float16", saturates=saturates_by_default(target))
    return None


def imitate(capture: Capture, form: Format, threshold: float | None = None) -> tuple[list[Layer], list[dict[str, float]]]:
    """(layers in order, errors of each output)."""
    run = Comparing(graph_of(capture), form, threshold)
    with torch.no_grad():
        run.run(*inputs_of(capture))
    outputs = []
    for pair in run.outputs:
        r, e = pair.reference.double(), pair.imitation.double()
        finite = torch.isfinite(r) & torch.isfinite(e)
        gap = (e - r)[finite]
        outputs.append({
            "max_abs_error": float(gap.abs().max()) if gap.numel() else 0.0, "relative_error": float(gap.norm() / (r[finite].norm() or 1.0)) if gap.numel() else 0.0,
            "non_finite": int((~torch.isfinite(e) & torch.isfinite(r)).sum()),
        })
    return run.layers, outputs


def explain(layer: Layer, form: Format | None) -> str:
    """What happened there, one sentence."""
    name = form.name if form else _("the target")
    match layer.status:
        case "overflow":
            text = _("overflow: the reference reaches {value:.4g}, beyond {limit:.5g}, the largest of {name}, and becomes inf").format(
                value=layer.largest, limit=form.largest if form else 65504.0, name=name)
        case "saturation":
            text = _("saturation: the reference reaches {value:.4g} and sticks at {limit:.5g}, so no test for inf fires").format(value=layer.largest, limit=form.largest if form else 65504.0)
        case "nan":
            text = _("NaN where the reference has a number")
        case "nan-in-reference":
            text = _("NaN in the reference itself: the model is wrong on this input before any precision is lowered")
        case "underflow":
            text = _("underflow: {share:.0%} of the values are flushed to zero in {name}").format(share=layer.lost, name=name)
        case _:
            text = _("precision loss: relative error {error:.2e} (cosine {cosine:.4f})").format(error=layer.relative, cosine=layer.cosine)
    if layer.status in ("underflow", "precision-loss") and (layer.own or layer.inherited):
        text += "; " + _("own error {own:.2e}, inherited {inherited:.2e}").format(own=layer.own, inherited=layer.inherited)
    return text


def _place(layer: Layer) -> dict[str, Any]:
    return {"module": layer.module or None, "operator": layer.operator, "file": layer.location.file if layer.location else None,
            "line": layer.location.line if layer.location else None, "node": layer.node}


def _followers(layers: list[dict[str, Any]], bad: Layer) -> int:
    """How many later operators are bad by inheritance."""
    names = [layer["node"] for layer in layers]
    if bad.node not in names:
        return 0
    return sum(layer["status"] != "ok" and not layer["caused"] for layer in layers[names.index(bad.node) + 1:])


_CODES = {"overflow": ("NPU340", "overflow"), "saturation": ("NPU341", "saturation"), "nan": ("NPU342", "nan"), "nan-in-reference": ("NPU343", "nan-in-reference"),
          "underflow": ("NPU344", "underflow"), "precision-loss": ("NPU345", "precision-loss")}


def _finding(layer: Layer, form: Format | None, kind: Kind) -> Finding:
    code, name = _CODES[layer.status]
    fixes = {
        "overflow": _("Keep this operator in float32, scale its input down, or use bfloat16, which has float32's range."),
        "saturation": _("Keep this operator in float32 or scale its input; INF_NAN_MODE_ENABLE=1 makes the overflow visible where the chip has it."),
        "nan": _("Look at what it divides, or subtracts from infinity: keep it in float32, or use a finite mask."),
        "nan-in-reference": _("Repair the model for this input first (a row masked as a whole, 0/0, the logarithm of a negative number)."),
        "underflow": _("Scale up before, use bfloat16, or keep this operator in float32."),
        "precision-loss": _("Keep this operator in a higher precision and compare again: the ones behind it inherit its error."),
    }
    severity = Severity.WARNING if layer.status in ("precision-loss", "underflow") else Severity.ERROR
    message = _("The numbers first go wrong at {operator}: {what}.").format(operator=layer.operator, what=explain(layer, form))
    return Finding(code, name, severity, message, layer.location, layer.module, fixes[layer.status], kind=kind, details={**layer.as_json()})


def _sections(layers: list[Layer], form: Format, bad: Layer | None, outputs: list[dict[str, float]]) -> list[Section]:
    counts = Counter(layer.status for layer in layers)
    sections: list[Section] = [_table(_("Operators with the largest error of their own"), list(worst(layers)))]
    wrong = [layer for layer in layers if layer.status != "ok"]
    if wrong:
        sections.insert(0, _table(_("Bad operators, in order ({n} of {m})").format(n=len(wrong), m=len(layers)), wrong))
    text = ", ".join(f"{k} {v}" for k, v in counts.items())
    sections.append(Facts("", ((_("operators"), text), *((_("output {i}").format(i=i), _("largest absolute error {a:.3e}, relative {r:.3e}, {n} not finite").format(
        a=o["max_abs_error"], r=o["relative_error"], n=int(o["non_finite"]))) for i, o in enumerate(outputs)))))
    return sections


def _table(title: str, layers: list[Layer]) -> Table:
    columns = (_("operator"), _("module"), _("line"), _("status"), _("cause"), _("relative"), _("own"), _("inherited"), _("cosine"))
    rows = tuple(
        (layer.operator, layer.module, f"{Path(layer.location.file).name}:{layer.location.line}" if layer.location else "", layer.status,
         "" if layer.status == "ok" else _("own") if layer.caused else _("inherited"), f"{layer.relative:.2e}", f"{layer.own:.2e}", f"{layer.inherited:.2e}", f"{layer.cosine:.5f}")
        for layer in layers
    )
    return Table(title, columns, rows, top=12)
