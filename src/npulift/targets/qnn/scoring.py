"""One figure for a compiled program, from the compiler's own schematic: to rank two programs for one chip, not to tell its speed."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

from npulift.measured import Kind
from npulift.messages import _
from npulift.targets.base import Score
from npulift.targets.qnn.schematic import Schematic, Totals

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

UNIT = "qnn-cost"


def parts_of(schematics: list[Schematic], *, cpu_operators: int, crossings: int, crossing_bytes: int) -> dict[str, Any]:
    """What the score is made of, JSON types. max_dist is of the longest program."""
    total = Totals()
    for schematic in schematics:
        total.add(schematic.total)
    return {
        **{name: getattr(total, name) for name in total.__dataclass_fields__}, "max_dist": max((s.max_dist for s in schematics), default=0),
        "npu_programs": len(schematics), "cpu_operators": cpu_operators, "crossings": crossings, "crossing_bytes": crossing_bytes,
    }


def score_of(parts: dict[str, Any]) -> Score:
    """The weighted sum (weights and what they mean: score.toml)."""
    w = weights()
    value = (
        w["hexagon_operator"] * parts["hexagon_operators"]
        + w["dram_byte"] * (parts["dram_read_bytes"] + parts["dram_written_bytes"])
        + w["vtcm_byte"] * (parts["vtcm_read_bytes"] + parts["vtcm_written_bytes"])
        + w["crossing"] * parts["crossings"] + w["crossing_byte"] * parts["crossing_bytes"] + w["cpu_operator"] * parts["cpu_operators"]
    )
    return Score(round(value, 1), UNIT, Kind.VENDOR_ESTIMATE, {**parts, "cannot_tell": cannot_tell()})


def cannot_tell() -> str:
    """What the score does not say."""
    return _(
        "Counted from the compiler's static picture of the program, never timed. It cannot tell how long an operator takes, what runs at the same time, "
        "clock rates, or what the CPU's part costs; a lower figure is a reason to try a change on the device, not a measured gain."
    )


@cache
def weights() -> dict[str, float]:
    """score.toml."""
    with (Path(__file__).parent / "score.toml").open("rb") as file:
        return {k: float(v) for k, v in tomllib.load(file).items()}
