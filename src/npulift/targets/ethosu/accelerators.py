"""Names of accelerators, system configurations and memory modes, checked before Vela sees them (it exits the process on some wrong ones and accepts others)."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from npulift.errors import NpuliftError
from npulift.messages import _

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True, slots=True)
class Accelerator:
    """name: e.g. 'ethos-u85-256'.   family: 'u85'.   system_config, memory_mode: Vela's names."""

    name: str
    family: str
    system_config: str
    memory_mode: str


@lru_cache
def families() -> dict[str, dict[str, Any]]:
    """The table of accelerators.toml."""
    found: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "accelerators.toml").read_text())["families"]
    return found


def names() -> tuple[str, ...]:
    """Every accelerator."""
    return tuple(f"ethos-{family}-{macs}" for family, entry in families().items() for macs in entry["macs"])


def accelerator(name: str, options: dict[str, Any]) -> Accelerator:
    """The accelerator with its configuration; options: system_config, memory_mode. Raises NpuliftError with the list for a wrong one."""
    if name not in names():
        raise NpuliftError(_("There is no accelerator {name}; there are {names}.").format(name=name, names=", ".join(names())))
    family = name.split("-")[1]
    entry = families()[family]
    chosen = {}
    for key in ("system_config", "memory_mode"):
        value = options.get(key) or entry[key]
        if value not in entry[f"{key}s"]:
            raise NpuliftError(_("{value} is not a {key} of {name}; there are {values}.").format(value=value, key=key, name=name, values=", ".join(entry[f"{key}s"])))
        chosen[key] = value
    return Accelerator(name, family, **chosen)
