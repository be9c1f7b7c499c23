"""The data files of the cost model: kernel types, names of aclnn functions, links, calibration."""

from __future__ import annotations

import csv
import json
import re
import sys
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class KernelType:
    """A row of kernels.csv."""

    name: str
    group: str
    device: str
    passes: float
    reads: str


@dataclass(frozen=True, slots=True)
class Links:
    """A row of links.toml. Bandwidths in bytes/s, one direction."""

    l2_bytes: int
    host_bandwidth: float
    card_bandwidth: float
    topology: str
    cards: int
    network_bandwidth: float
    sources: tuple[str, ...]


def _rows(name: str) -> list[dict[str, str]]:
    with (_HERE / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


@lru_cache
def kernel_types() -> dict[str, KernelType]:
    """Kernel types by name."""
    return {r["type"]: KernelType(r["type"], r["group"], r["device"], float(r["passes"]), r["reads"]) for r in _rows("kernels.csv")}


@lru_cache
def _functions() -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    rows = _rows("aclnn.csv")
    exact = {r["function"]: r["type"] for r in rows if "*" not in r["function"]}
    return exact, tuple((r["function"], r["type"]) for r in rows if "*" in r["function"])


@lru_cache(maxsize=4096)
def kernel_type(name: str) -> KernelType:
    """The kernel type of 'aclnnInplaceAdd', 'aclop:MatMul' or 'MatMul'; 'Unknown' (an element-wise kernel) where nothing fits."""
    types = kernel_types()
    if name in types:
        return types[name]
    bare = name.removeprefix("aclop:").removeprefix("aclnn")
    exact, patterns = _functions()
    for candidate in (bare, bare.removeprefix("Inplace"), re.sub(r"V\d+$", "", bare.removeprefix("Inplace"))):
        if candidate in exact:
            return types[exact[candidate]]
        if name.startswith("aclop:") and candidate in types:
            return types[candidate]
        for pattern, kind in patterns:
            if fnmatchcase(candidate, pattern):
                return types[kind]
    return types["Unknown"]


@lru_cache
def links() -> dict[str, Links]:
    """Links and caches by chip."""
    table: dict[str, dict[str, Any]] = tomllib.loads((_HERE / "links.toml").read_text(encoding="utf-8"))
    return {name: Links(**{**row, "sources": tuple(row["sources"])}) for name, row in table.items()}


@lru_cache
def calibration() -> dict[str, Any]:
    """What tools/fit_ascend_cost.py found: 'shared', 'groups', 'types', 'spread', 'chips', 'source'."""
    loaded: dict[str, Any] = json.loads((_HERE / "calibration.json").read_text(encoding="utf-8"))
    return loaded
