"""Rules over what profilers wrote. One file a rule: CODE, NAME, `find(view)`, and a docstring that is its page: what, threshold and why, saving, change."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

from npulift.findings import Finding
from npulift.profilers.view import View


def rules() -> list[ModuleType]:
    """Every rule module, by code."""
    found = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    return sorted((m for m in found if hasattr(m, "find")), key=lambda m: (m.CODE, m.NAME))


def findings(view: View) -> Iterator[Finding]:
    """What every rule has to say."""
    for rule in rules():
        yield from rule.find(view)
