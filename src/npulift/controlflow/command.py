"""rewrite: the verb behind `npulift rewrite`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npulift.controlflow.rewriter import Rewritten, rewrite_file, rewrites_of
from npulift.errors import NpuliftError
from npulift.files import write_text
from npulift.findings import Finding, Location, Severity
from npulift.loading import load_model
from npulift.messages import _, ngettext
from npulift.model import ModelSpec
from npulift.report.document import Code, Report, Section, Text
from npulift.tracing import capture as capture_model


def rewrite(model: str | ModelSpec | tuple[Any, Any], *, write: bool = False) -> Report:
    """Every verified rewrite of the model's own source as a diff; with `write` the files are changed, each as a whole or not at all.

    Raises NpuliftError for a MODEL that is not right.
    """
    if isinstance(model, str) and model.endswith(".pt2"):
        raise NpuliftError(_("{path} holds a graph and no source; give file.py:factory.").format(path=model))
    spec = load_model(model)
    seen = capture_model(spec)
    found = rewrites_of(seen)
    done = [r for r in found if not r.refused]
    refused = [r for r in found if r.refused]
    findings = [_refusal(r) for r in refused]
    sections: list[Section] = []
    for rewritten in done:
        evidence = rewritten.evidence
        assert evidence is not None
        text = _("{reason} Verified: {n} calls and {m} paths through its branches, largest difference {error:.1e}.").format(
            reason=rewritten.reason[:1].upper() + rewritten.reason[1:], n=evidence.inputs, m=evidence.paths, error=evidence.error)
        text += " " + (_("The rewritten model exports with no size that depends on data.") if rewritten.exports else _("torch.export still stops at something else, see npulift check."))
        if rewritten.flop_factor is not None and rewritten.flop_factor > 1.05:
            text += " " + _("It computes {factor:.2g} times the work on the example inputs.").format(factor=rewritten.flop_factor)
        sections += [Text(text, f"{Path(rewritten.file).name}:{rewritten.line} {rewritten.class_name}.{rewritten.function}"), Code(rewritten.diff, "", "diff")]
    written = []
    if write:
        for file in sorted({r.file for r in done}):
            path = Path(file)
            text = rewrite_file(path, done)
            compile(text, str(path), "exec")  # a file that would not parse is never written
            write_text(path, text)
            written.append(str(path))
    n = len(done)
    head = ngettext("{n} function rewritten", "{n} functions rewritten", n).format(n=n) if done else _("Nothing to rewrite.") if not refused else _("Nothing could be rewritten.")
    if done:
        head += " " + (_("(written to {files})").format(files=", ".join(written)) if write else _("(not written; --write does it)"))
    return Report(
        "rewrite", head, {"model": spec.origin or spec.name}, findings=tuple(findings),
        data={"rewrites": [r.as_json() for r in found], "written": written, "data_dependent": [
            {"kind": s.kind, "operator": s.operator, "file": s.location.file if s.location else None, "line": s.location.line if s.location else None} for s in seen.data_dependent]},
        sections=tuple(sections),
    )


def _refusal(rewritten: Rewritten) -> Finding:
    line = rewritten.lines[0] if rewritten.lines else rewritten.line
    return Finding(
        "NPU230", "not-rewritten", Severity.INFO, _("{name}.{function} was left as it is: {reason}.").format(name=rewritten.class_name, function=rewritten.function, reason=rewritten.refused),
        Location(rewritten.file, line, rewritten.function), "", _("See docs/controlflow.md for what can be rewritten, and change this spot by hand."), details={"reason": rewritten.refused},
    )
