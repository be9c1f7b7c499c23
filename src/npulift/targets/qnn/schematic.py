"""Read the compiler's schematic of a finished program: which Hexagon operators it consists of and what each moves.

The compiler writes it with profiling_level=optrace, as text, when the program is made; nothing has to run. Two compilations of the same
program give the same figures. What it counts: operators after tiling (one ONNX operator may become hundreds), with flags for the matrix
unit (HMX), the vector unit (HVX) and DMA, bytes from and to DRAM and VTCM, and max_dist, the longest chain of dependent operators.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

_OPERATION = re.compile(r"^\t(0x[0-9a-f]+): \{\n\t\t'operation':'([^']*)'", re.M)
_FLAGS = re.compile(r"^\t\t(0x[0-9a-f]+): \{\s*'flags'\s*:\s*\(([^)]*)\)", re.M)
_BYTES = re.compile(
    r'"opid" : (0x[0-9a-f]+) , "dram_read": (\d+) , "dram_write": (\d+) , "vtcm_read": (\d+) , "vtcm_write": (\d+), "is_dma": (\d)'
)
_NAME = re.compile(r"^(0x[0-9a-f]{16}): '([^']*)',?$", re.M)
_LIMIT = 512 * 2**20  # bytes; a schematic of a 12-layer vision transformer has 10 MB


@dataclass
class Totals:
    """Sums over operators. Bytes are of one inference; reads of VTCM charge a slice its whole input, so they are an upper bound."""

    hexagon_operators: int = 0
    hmx_operators: int = 0
    hvx_operators: int = 0
    dma_operators: int = 0
    dram_read_bytes: int = 0
    dram_written_bytes: int = 0
    vtcm_read_bytes: int = 0
    vtcm_written_bytes: int = 0

    def add(self, other: Totals) -> None:
        """Add another's sums."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass
class Schematic:
    """total: of the whole program.   max_dist: operators on the longest chain.   nodes: totals by ONNX node, as ONNX Runtime named it."""

    total: Totals = field(default_factory=Totals)
    max_dist: int = 0
    nodes: dict[str, Totals] = field(default_factory=dict)


def read_schematic(path: Path) -> Schematic:
    """Read a *_schematic.bin. Raises ValueError when it is not one, or is cut short or larger than 512 MiB."""
    if path.stat().st_size > _LIMIT:
        raise ValueError(f"{path.name} has {path.stat().st_size:,} bytes; more than {_LIMIT:,} are not read")
    text = path.read_text(encoding="utf-8", errors="replace")
    after = _section(text, "graph_after_optimization")
    operators = {int(a, 16): name for a, name in _OPERATION.findall(after) if not name.startswith("$")}
    flags = {int(a, 16): f for a, f in _FLAGS.findall(_section(text, "graph_flag0"))}
    names = _names(text)
    nodes: dict[str, Totals] = defaultdict(Totals)
    for identity in operators:
        flag = flags.get(identity, "")
        entry = nodes[names.get(identity & 0xFFFFFFFF, "")]
        entry.hexagon_operators += 1
        entry.hmx_operators += "uses_hmx" in flag
        entry.hvx_operators += "uses_hvx" in flag
        entry.dma_operators += "uses_dma" in flag
    for a, *figures in _BYTES.findall(text):
        dram_read, dram_written, vtcm_read, vtcm_written = map(int, figures[:4])
        entry = nodes[names.get(int(a, 16) & 0xFFFFFFFF, "")]
        entry.dram_read_bytes += dram_read
        entry.dram_written_bytes += dram_written
        entry.vtcm_read_bytes += vtcm_read
        entry.vtcm_written_bytes += vtcm_written
    total = Totals()
    for entry in nodes.values():
        total.add(entry)
    distances = re.findall(r"max_dist=(\d+)", text)
    return Schematic(total, max(map(int, distances), default=0), dict(nodes))


def _section(text: str, name: str) -> str:
    begin, end = text.find(f":::BEGIN:{name}"), text.find(f":::END:{name}")
    if begin < 0 or end < begin:
        raise ValueError(f"the section {name} is missing; the schematic is cut short or of another version")
    return text[begin:end]


def _names(text: str) -> dict[int, str]:
    begin = text.find("qnn_name_translations")
    end = text.find("qnn_graph_name", begin)
    if begin < 0:
        return {}
    return {int(a, 16) & 0xFFFFFFFF: name for a, name in _NAME.findall(text[begin : end if end > 0 else len(text)])}
