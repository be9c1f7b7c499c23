"""Rules over a Capture. One file a rule: CODE, NAME, SEVERITY, `find(capture, target)`, and a docstring that is the rule's page.

FAMILIES, where a file has it, names the target families that the rule is for; without it the rule is for all.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

from npulift.capture import Capture
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.targets.base import Target


def rules() -> list[ModuleType]:
    """Every rule module, by code."""
    found = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    return sorted((m for m in found if hasattr(m, "find")), key=lambda m: (m.CODE, m.NAME))


def findings(capture: Capture, target: Target) -> Iterator[Finding]:
    """What every rule for this target has to say."""
    for rule in rules():
        families = getattr(rule, "FAMILIES", ())
        if families and not set(families) & set(target.families):
            continue
        try:
            yield from rule.find(capture, target)
        except Exception as error:  # one rule that trips over an unusual graph must not hide what the others found
            text = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            yield Finding("NPU109", "rule-failed", Severity.INFO, _("The rule {code} {name} could not look at this model ({error}).").format(
                code=rule.CODE, name=rule.NAME, error=text), details={"rule": rule.CODE, "error": text})
