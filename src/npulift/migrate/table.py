"""The table of counterparts: what CUDA code says, what it is on an NPU, and where that is written. Kept in cuda_to_npu.csv."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """kind: 'attribute' (dotted name), 'import' (name in a from-import), 'method', 'string', 'environment', 'environment-report', 'report', 'extension', 'package'.

    npu: '' where there is no counterpart.   source: who says so.
    """

    kind: str
    cuda: str
    npu: str
    note: str
    source: str


@cache
def entries() -> tuple[Entry, ...]:
    """Every row."""
    with (Path(__file__).parent / "cuda_to_npu.csv").open(encoding="utf-8", newline="") as file:
        return tuple(Entry(**row) for row in csv.DictReader(file))


@cache
def by_name(kind: str) -> dict[str, Entry]:
    """Entries of a kind by their CUDA name."""
    return {e.cuda: e for e in entries() if e.kind == kind}
