"""Rules over a Capture. One file a rule: CODE, NAME, SEVERITY, `find(capture, target)`, and a docstring that is the rule's page.

FAMILIES, where a file has it, names the target families that the rule is for; without it the rule is for all.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

from npulift.capture import Capture
from npulift.findings import Finding
from npulift.targets.base import Target


def rules() -> list[ModuleType]:
    """Every rule module, by code."""
    found = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    return sorted((m for m in found if hasattr(m, "find")), key=lambda m: (m.CODE, m.NAME))


def findings(capture: Capture, target: Target) -> Iterator[Finding]:
    """What every rule for this target has to say."""
    for rule in rules():
        families = getattr(rule, "FAMILIES", ())
        if not families or set(families) & set(target.families):
            yield from rule.find(capture, target)
