"""check: what will fall back, recompile, transpose or lose precision on a target, with the user's own source lines."""

from __future__ import annotations

from typing import Any

from npulift import rewrites, rules
from npulift.capture import Capture
from npulift.findings import Finding, Severity
from npulift.loading import load_model
from npulift.messages import _
from npulift.model import ModelSpec
from npulift.report.document import Facts, Report, Section, Table
from npulift.targets.base import Placement, Target, find_target
from npulift.targets.placing import place
from npulift.tracing import capture as capture_model


def check(model: str | ModelSpec | tuple[Any, Any], target: str = "openvino", **options: Any) -> Report:
    """Look at a model for a target; nothing is tuned and nothing of the user's is changed.

    options: of the target (say torch_npu='2.6' for ascend). Raises NpuliftError for a MODEL or a target that is not right.
    """
    chosen = find_target(target)
    for key, value in options.items():
        setattr(chosen, key, value)
    spec = load_model(model)
    seen = capture_model(spec)
    own = list(chosen.findings(seen))
    # What the target refuses before its compiler is called is not put to the compiler: its failure would only say it again.
    placement, found = (None, []) if any(f.severity is Severity.ERROR for f in own) else place(chosen, seen)
    findings = [*found, *rules.findings(seen, chosen), *own]
    findings += [c.finding for c in rewrites.proposals(seen, chosen) if c.finding is not None]
    findings = _once(findings)
    return Report(
        "check", _("{model} on {target}").format(model=spec.name, target=target), {"model": spec.origin or spec.name}, target,
        findings=tuple(findings), data=_data(seen, placement), sections=tuple(_sections(seen, placement, chosen)),
    )


def _once(findings: list[Finding]) -> list[Finding]:
    """Findings with the same code, place and message once; the most severe first."""
    seen: dict[Any, Finding] = {}
    for finding in findings:
        key = (finding.code, finding.location and (finding.location.file, finding.location.line), finding.message)
        seen.setdefault(key, finding)
    return sorted(seen.values(), key=lambda f: (-f.severity.rank, -(f.cost_share or 0.0)))


def _data(seen: Capture, placement: Placement | None) -> dict[str, Any]:
    data: dict[str, Any] = {
        "operators": {"exported": len(seen.exported_ops), "eager": len(seen.eager_ops)},
        "exportable": seen.exported is not None and not seen.draft,
        "placement": None,
    }
    if placement is not None:
        data["placement"] = {
            "source": placement.source, "npu_operators": placement.accelerated, "cpu_operators": placement.on_cpu,
            "crossings": placement.crossings, "inserted_transposes": placement.inserted_transposes,
        }
    return data


def _sections(seen: Capture, placement: Placement | None, target: Target) -> list[Section]:
    flops = sum(op.flops or 0 for op in seen.exported_ops)
    parameters = sum(p.numel() for p in seen.spec.module.parameters())
    rows = [
        (_("parameters"), f"{parameters:,}"),
        (_("operators"), _("{exported} in the exported graph, {eager} dispatched by eager").format(exported=len(seen.exported_ops), eager=len(seen.eager_ops))),
        (_("work"), f"{flops / 1e9:.2f} GFLOP"),
    ]
    if seen.export_error:
        rows.append((_("torch.export"), seen.export_error.splitlines()[0][:200]))
    if placement is not None:
        rows.append((_("placement"), _("{n} operators on {target}, {m} on the CPU ({source})").format(
            n=placement.accelerated, m=placement.on_cpu, target=target.name, source=placement.source)))
        if placement.crossings is not None:
            rows.append((_("crossings"), str(placement.crossings)))
    sections: list[Section] = [Facts("", tuple(rows))]
    if placement is not None and placement.on_cpu:
        refused = [p for p in placement.placed if not p.accelerated]
        table = tuple((p.operator, p.device, str(p.op.location) if p.op and p.op.location else "", p.reason) for p in refused)
        sections.append(Table(_("Not on the accelerator"), (_("operator"), _("device"), _("line"), _("reason")), table))
    return sections


__all__ = ["Severity", "check"]
