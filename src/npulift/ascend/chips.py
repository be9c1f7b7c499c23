"""The Ascend chips that npulift knows: memory, cores and published peaks, each with its source (chips.toml)."""

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
class Chip:
    """One chip.

    name: of the target, e.g. 'ascend-910b2'.   soc: what the driver calls it.   hbm_bytes: device memory; reserved_bytes of it are CANN's.
    bandwidth: of that memory, bytes/s.   peak_fp16: dense, FLOP/s.   clock: Hz.   bfloat16: the cores have it.
    jit_compile: torch_npu compiles operators just in time by default.   sources: where the figures come from.
    """

    name: str
    soc: str
    hbm_bytes: int
    reserved_bytes: int
    bandwidth: float
    cube_cores: int
    vector_cores: int
    clock: float
    peak_fp16: float
    bfloat16: bool
    jit_compile: bool
    sources: tuple[str, ...]

    @property
    def usable_bytes(self) -> int:
        """What torch_npu's allocator can get."""
        return self.hbm_bytes - self.reserved_bytes


@lru_cache
def chips() -> dict[str, Chip]:
    """Every chip by target name."""
    with Path(__file__).with_name("chips.toml").open("rb") as file:
        table: dict[str, dict[str, Any]] = tomllib.load(file)
    return {name: Chip(name=name, **{**row, "sources": tuple(row["sources"])}) for name, row in table.items()}


def chip(name: str) -> Chip:
    """The chip of a target name; 'ascend' alone is the 910B2. Raises NpuliftError with the list for an unknown one."""
    wanted = name.strip().lower().replace("ascend:", "ascend-")
    wanted = {"ascend": "ascend-910b2", "ascend-910b": "ascend-910b2", "ascend-310p": "ascend-310p3", "ascend-910": "ascend-910a"}.get(wanted, wanted)
    if wanted not in chips() and f"ascend-{wanted.removeprefix('ascend')}" in chips():
        wanted = f"ascend-{wanted.removeprefix('ascend')}"
    if wanted not in chips():
        raise NpuliftError(_("There is no chip {name}. There are: {known}.").format(name=name, known=", ".join(chips())))
    return chips()[wanted]
