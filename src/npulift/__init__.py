"""npulift makes PyTorch models run right and fast on NPUs.

The verbs of the command line as functions: `check`, `tune`, `compile`, `compare`, ...; `load` opens a bundle that `tune` or
`compile` wrote. Each is imported when first used, so `import npulift` is quick and pulls nothing in.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

__version__ = "0.1.0"

_API = {
    "ModelSpec": "npulift.model",
    "Dim": "npulift.model",
    "Tolerance": "npulift.model",
    "NpuliftError": "npulift.errors",
    "assume": "npulift.assuming",
    "capture": "npulift.tracing",
    "check": "npulift.check",
    "compile": "npulift.compile",
    "explain": "npulift.doctor.exceptions",
    "load": "npulift.bundle",
    "tune": "npulift.tune",
}
__all__ = ["__version__", *_API]  # noqa: PLE0604 - the names stand in the table above


class _Package(types.ModuleType):
    """The package as a module whose public names are properties: `npulift.check` is the function whether or not the module
    npulift.check was imported before, which would otherwise take its place."""


def _public(name: str, module: str) -> property:
    def get(_package: Any) -> Any:
        return getattr(importlib.import_module(module), name)

    def ignore(_package: Any, _value: Any) -> None:  # the import system sets each submodule on its package
        pass

    return property(get, ignore)


for _name, _module in _API.items():
    setattr(_Package, _name, _public(_name, _module))
sys.modules[__name__].__class__ = _Package
