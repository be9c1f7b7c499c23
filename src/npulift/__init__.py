"""npulift makes PyTorch models run right and fast on NPUs.

The verbs of the command line as functions: `check`, `tune`, `compile`, `compare`, ...; `load` opens a bundle that `tune` or
`compile` wrote. Each is imported when first used, so `import npulift` is quick and pulls nothing in.
"""

from __future__ import annotations

import importlib
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
    "explain": "npulift.doctor.exceptions",
    "load": "npulift.bundle",
    "tune": "npulift.tune",
}
__all__ = ["__version__", *_API]  # noqa: PLE0604 - the names stand in the table above


def __getattr__(name: str) -> Any:
    if name in _API:
        value = getattr(importlib.import_module(_API[name]), name)
        globals()[name] = value  # importing npulift.check has set the module under this name
        return value
    raise AttributeError(f"module 'npulift' has no attribute {name!r}")
