"""What a compilation has to tell the user: findings, with their own lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from npulift.capture import Op
from npulift.findings import Finding, Severity
from npulift.messages import _, ngettext
from npulift.targets.base import Placed
from npulift.targets.qnn.building import Build
from npulift.targets.qnn.vendor_errors import explain
from npulift.targets.qnn.ways_out import Outcome


def findings_of(outcome: Outcome) -> list[Finding]:
    """Everything that the compilation itself shows; see wrong_values.py for what running it shows."""
    return [*_stopped(outcome), *_refused(outcome.build), *_islands(outcome.build), *_gather_nd(outcome.build), *_attention(outcome.build)]


def notes_of(outcome: Outcome) -> list[str]:
    """The same for reports without findings: one line each of what went otherwise than asked."""
    return [f.message + (" " + f.fix if f.fix else "") for f in _stopped(outcome)]


def _stopped(outcome: Outcome) -> Iterator[Finding]:
    """The compiler stopped on what was asked for, and a way out worked."""
    if outcome.first is None:
        return
    failed = [t for t in outcome.tried if not t.worked]
    worked = next(t for t in outcome.tried if t.worked)
    message = explain(outcome.first)
    if failed:
        message += " " + _("Tried without success: {ways}.").format(ways="; ".join(f"{t.summary} ({t.error})" for t in failed))
    message += " " + _("What worked: {way}.").format(way=worked.summary)
    attempt = outcome.build.attempt
    fix = _("Compile with the target qnn:{soc}, if that is the chip.").format(soc=attempt.soc.name or attempt.soc.number) if worked.name == "named-soc" else (
        _("npulift does this by itself; look at the error, since it lowers precision.") if worked.name in ("int8", "int16") else _("npulift does this by itself.")
    )
    yield Finding(
        "NPU702", "vendor-error", Severity.WARNING, message, fix=fix,
        details={
            "code": outcome.first.code, "text": outcome.first.text[:500], "worked": worked.name, "soc": attempt.soc.number,
            "tried": [{"way": t.name, "worked": t.worked, "error": t.error} for t in outcome.tried],
        },
    )


def _refused(build: Build) -> Iterator[Finding]:
    """Operators that stay on the CPU, one finding for each of the user's lines and operators."""
    groups: dict[Any, list[Placed]] = {}
    for placed in build.placed:
        if not placed.accelerated and placed.operator not in ("QuantizeLinear", "DequantizeLinear"):
            place = placed.op.location if placed.op else None
            groups.setdefault((place and (place.file, place.line), placed.operator, placed.op.base if placed.op else ""), []).append(placed)
    for group in groups.values():
        first = group[0]
        op = first.op
        name = op.base.replace("::", ".") if op else first.operator
        reason = next((p.reason for p in group if p.reason), "")
        message = ngettext("{operator} (ONNX {kind}) stays on the CPU.", "{operator} (ONNX {kind}) stays on the CPU at {n} places.", len(group)).format(
            operator=name, kind=first.operator, n=len(group))
        yield Finding(
            "NPU700", "cpu-operator", Severity.WARNING, message + (" " + _("The compiler's reason: {reason}").format(reason=reason) if reason else ""),
            op.location if op else None, op.module if op else "", advice(first, op),
            details={"nodes": [p.node for p in group[:20]], "operator": first.operator, "reason": reason},
        )


def advice(placed: Placed, op: Op | None) -> str:
    """What to do about an operator that the compiler refuses."""
    base = op.base.removeprefix("aten::") if op else ""
    reason = placed.reason
    if "Cannot get shape" in reason:
        return _("A size is not known. Export with static shapes (npulift compile --bucket).")
    if placed.operator == "Attention":
        return _("Export attention decomposed (opset 22 or older); npulift does.")
    if base in ("erf", "erf_") or placed.operator == "Erf":
        return _("In a GELU, write torch.nn.functional.gelu, which the chip has. Elsewhere npulift tune replaces erf by an accurate form that the chip has.")
    if base.startswith("_upsample") and base.partition(".")[0].endswith("_aa"):
        return _("The chip's resize knows no antialiasing. When the output is at least as large as the input, antialias=False gives the same values; "
                 "otherwise write the resize as two products with fixed weight matrices, or move it to the preprocessing.")
    if placed.operator == "Resize":
        return _("Use bilinear or nearest with whole sizes, or let npulift tune write the resize as two products with fixed matrices.")
    if placed.operator in ("NonZero", "Trilu", "DFT", "Det", "NonMaxSuppression"):
        return _("Move it out of the model: before it, after it, or computed once as a constant.")
    return _("Write it with other operators (npulift tune tries those that it knows), or move it to the beginning or the end of the model, where it cuts nothing.")


def _islands(build: Build) -> Iterator[Finding]:
    on_cpu = [p for p in build.placed if not p.accelerated]
    if not on_cpu or not build.crossings:
        return
    programs = build.parts["npu_programs"]
    message = ngettext("{n} operator on the CPU", "{n} operators on the CPU", len(on_cpu)).format(n=len(on_cpu)) + " " + _(
        "cut the graph into {programs} NPU programs: {crossings} tensors pass between NPU and CPU in one inference, and the compiler inserted {transposes} transposes."
    ).format(programs=programs, crossings=build.crossings, transposes=build.inserted_transposes)
    yield Finding(
        "NPU701", "cpu-islands", Severity.WARNING, message, fix=_("Replace the operators on the CPU: each one saves up to two crossings and a transpose at each."),
        details={"crossings": build.crossings, "inserted_transposes": build.inserted_transposes, "npu_programs": programs, "cpu_operators": len(on_cpu)},
    )


def _gather_nd(build: Build) -> Iterator[Finding]:
    groups: dict[Any, list[Op | None]] = {}
    for node in build.prepared.replaced:
        op = build.prepared.origins.get(node)
        groups.setdefault(op.location and (op.location.file, op.location.line) if op else None, []).append(op)
    for ops in groups.values():
        op = ops[0]
        yield Finding(
            "NPU704", "gathernd-wrong-rows", Severity.WARNING,
            _("Indexing with a list or tensor exports as GatherND, which this compiler takes and which then returns wrong rows without an error. "
              "npulift replaced it by Gather ({n} places).").format(n=len(ops)),
            op.location if op else None, op.module if op else "",
            _("Write torch.index_select(x, dim, index), which is right in every conversion."), details={"operator": op.base if op else "GatherND"},
        )


def _attention(build: Build) -> Iterator[Finding]:
    """Attention, and the operators that it became: that none of them is on the CPU is what matters."""
    attention = [op for op in _attention_ops(build) if op is not None]
    if not attention:
        return
    first = attention[0]
    kinds: dict[str, int] = {}
    for placed in build.placed:
        if placed.op is not None and placed.op.module == first.module and placed.op.base in _MADE_OF:
            kinds[placed.operator] = kinds.get(placed.operator, 0) + 1
    on_cpu = sum(not p.accelerated for p in build.placed if p.op is not None and p.op.base in _MADE_OF)
    listed = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
    yield Finding(
        "NPU707", "attention-decomposed", Severity.INFO,
        _("Attention is exported as {operators}: this compiler leaves ONNX's own Attention operator (opset 23) on the CPU. {n} of these are on the CPU.").format(
            operators=listed or "MatMul, Softmax, MatMul", n=on_cpu),
        first.location, first.module, details={"operators": kinds, "on_cpu": on_cpu},
    )


_MADE_OF = {
    "aten::scaled_dot_product_attention", "aten::matmul", "aten::softmax", "aten::mul", "aten::transpose", "aten::add", "aten::slice", "aten::cat",
}


def _attention_ops(build: Build) -> list[Op | None]:
    """The softmax operators of attention, as the build's graph has them."""
    return [p.op for p in build.placed if p.operator == "Softmax" and p.op is not None and p.op.base in ("aten::softmax", "aten::scaled_dot_product_attention")]
