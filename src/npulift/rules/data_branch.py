"""NPU221 data-branch: Python decides on the value of a tensor (if, while, and, or, not, assert).

Why it hurts: the value must come to the host first, so the device's queue drains; a traced program keeps the branch of its example for ever ("Converting a tensor to a Python boolean"), and torch.export stops
("Could not guard on data-dependent expression"). Early exits are of this kind.
Bad:   if torch.isnan(x).any(): x = torch.zeros_like(x)
Good:  x = torch.where(torch.isnan(x).any(), torch.zeros_like(x), x)
`npulift rewrite` writes the change where it can verify it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from npulift.capture import Capture
from npulift.controlflow import Rewritten, rewrites_of
from npulift.findings import Finding, Severity
from npulift.messages import _, ngettext
from npulift.rules.families import is_npu
from npulift.targets.base import Target

CODE = "NPU221"
NAME = "data-branch"


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for each line."""
    seen = set()
    for spot in capture.data_dependent:
        key = spot.location and (spot.location.file, spot.location.line)
        if not is_branch(capture, spot) or key in seen:
            continue
        seen.add(key)
        rewritten = rewrite_at(capture, spot)
        message = _("A branch depends on data here: the value goes to the host, and no graph can hold both sides.")
        if capture.export_error:
            message += " " + _("torch.export stops with: {reason}").format(reason=capture.export_error.splitlines()[0].split("(unhinted")[0][:200].strip())
        fix, details = advice(rewritten, _("Select with torch.where (both sides are computed), or keep both with torch.cond where the target has control flow."))
        severity = Severity.ERROR if is_npu(target) and (capture.draft or capture.exported is None) else Severity.WARNING
        yield Finding(CODE, NAME, severity, message, spot.location, spot.module, fix, details={"expression": spot.expression, **details})


def is_branch(capture: Capture, spot: Any) -> bool:
    """True for a branch, and for a value that is read on the line of an `if`, `while` or `assert`."""
    if spot.kind == "branch":
        return True
    return spot.kind == "value" and spot.location is not None and _is_condition(spot.location.file, spot.location.line)


def _is_condition(file: str, line: int) -> bool:
    import linecache

    text = linecache.getline(file, line).strip()
    return text.startswith(("if ", "if(", "elif ", "while ", "assert ")) and ".item()" not in text


def rewrite_at(capture: Capture, spot: Any) -> Rewritten | None:
    """The rewrite of the function that the spot lies in, done or refused."""
    if spot.location is None:
        return None
    for rewritten in rewrites_of(capture):
        if rewritten.file == spot.location.file and spot.location.line in range(rewritten.line, max(rewritten.last, *(rewritten.lines or (0,))) + 1):
            return rewritten
    return None


def advice(rewritten: Rewritten | None, general: str) -> tuple[str, dict[str, Any]]:
    """(what to do, details): the verified rewrite when there is one, else the general advice with the reason why there is none."""
    if rewritten is None:
        return general, {}
    if rewritten.refused:
        return general + " " + _("npulift rewrite does not do it by itself: {reason}.").format(reason=rewritten.refused), {"rewrite_refused": rewritten.refused}
    evidence = rewritten.evidence
    assert evidence is not None
    text = _("npulift rewrite does it: {reason}").format(reason=rewritten.reason)
    checked = ngettext("Verified on {n} call", "Verified on {n} calls", evidence.inputs).format(n=evidence.inputs)
    if evidence.paths:
        checked += " " + ngettext("and along {n} path through its branches", "and along {n} paths through its branches", evidence.paths).format(n=evidence.paths)
    text += f" {checked} " + _("(largest difference {error:.1e})").format(error=evidence.error)
    text += _("; the rewritten model exports.") if rewritten.exports else "."
    return text, {"rewrite": {"kinds": list(rewritten.kinds), "verified": evidence.as_json(), "exports": rewritten.exports, "diff": rewritten.diff}}
