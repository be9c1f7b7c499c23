"""Which torch_npu goes with which torch and CANN (versions.csv)."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Release:
    """One release of torch_npu, the torch it needs and the newest CANN it was released with ('' when not published)."""

    torch_npu: str
    torch: str
    cann: str


@lru_cache
def releases() -> tuple[Release, ...]:
    """Every known release, newest first."""
    with Path(__file__).with_name("versions.csv").open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return tuple(Release(r["torch_npu"], r["torch"], r["cann"]) for r in rows)


def base(version: str) -> str:
    """'2.13.0' of '2.13.0+cpu' or '2.13.0.post2'."""
    found = re.match(r"\d+(\.\d+)*", version)
    return ".".join(found.group(0).split(".")[:3]) if found else version


def for_torch(torch: str) -> str:
    """The newest torch_npu for this torch; the same number where the table does not know it."""
    return next((r.torch_npu for r in releases() if r.torch == base(torch)), base(torch))


def torch_for(torch_npu: str) -> str:
    """The torch that this torch_npu needs."""
    return next((r.torch for r in releases() if r.torch_npu == torch_npu), base(torch_npu))
