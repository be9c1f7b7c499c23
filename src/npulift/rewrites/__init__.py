"""Rewrites: one file each. A file offers REWRITE (a graph rewrite, see npulift.rewriting) or `propose(capture, target)`; its docstring is its page."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

from npulift.capture import Capture
from npulift.changes import Change
from npulift.targets.base import Target


def rewrites() -> list[ModuleType]:
    """Every rewrite module, by name."""
    found = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    return [m for m in found if hasattr(m, "REWRITE") or hasattr(m, "propose")]


def proposals(capture: Capture, target: Target) -> Iterator[Change]:
    """What every rewrite offers for this model on this target."""
    for module in rewrites():
        propose = module.REWRITE.propose if hasattr(module, "REWRITE") else module.propose
        yield from propose(capture, target)
