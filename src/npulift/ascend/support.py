"""Which operators have kernels in which release of torch_npu (support.csv)."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from npulift.errors import NpuliftError
from npulift.messages import _


@dataclass(frozen=True, slots=True)
class Support:
    """First and last torch version (major, minor) with a kernel, on the graph-operator path (acl) and the aclnn path (api); None: never."""

    acl: tuple[tuple[int, int], tuple[int, int]] | None
    api: tuple[tuple[int, int], tuple[int, int]] | None

    def has(self, version: tuple[int, int]) -> bool:
        """True when there is a kernel on either path."""
        return any(span is not None and span[0] <= version <= span[1] for span in (self.acl, self.api))


def parse_version(text: str) -> tuple[int, int]:
    """(2, 6) of '2.6' or '2.6.0.post3'. Raises NpuliftError for anything else, and for versions that the table does not cover."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.|$)", text.strip())
    if not found:
        raise NpuliftError(_("{text} is not a version of torch_npu; write 2.6 or 2.6.0.").format(text=text))
    version = int(found.group(1)), int(found.group(2))
    if not (2, 1) <= version <= (2, 15):
        raise NpuliftError(_("There is support data for torch_npu 2.1 to 2.15, not for {text}.").format(text=text))
    return version


@lru_cache
def table() -> dict[str, tuple[Support, ...]]:
    """Base name ('isin') -> support of each of its overloads."""
    with Path(__file__).with_name("support.csv").open(encoding="utf-8", newline="") as file:
        found: dict[str, tuple[Support, ...]] = {}
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            entry = Support(_span(row["acl_first"], row["acl_last"]), _span(row["api_first"], row["api_last"]))
            base = row["operator"].partition(".")[0]
            found[base] = (*found.get(base, ()), entry)
    return found


def has_kernel(operator: str, version: tuple[int, int]) -> bool | None:
    """Does 'aten::isin.Tensor_Tensor' have a kernel in that version? None when the table does not know the operator (composites, views)."""
    base = operator.partition("::")[2].partition(".")[0]
    entries = [e for name in (base, base.rstrip("_"), f"{base}_") for e in table().get(name, ())]
    return any(e.has(version) for e in entries) if entries else None


def _span(first: str, last: str) -> tuple[tuple[int, int], tuple[int, int]] | None:
    if not first or not last:
        return None
    a, b = (tuple(int(n) for n in text.split(".")[:2]) for text in (first, last))
    return (a[0], a[1]), (b[0], b[1])
