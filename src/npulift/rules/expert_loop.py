"""NPU223 expert-loop: a mixture of experts picks the rows of each expert in a Python loop.

Why it hurts: one nonzero (a host sync) and several data-sized operators for every expert, one root cause: the loop. The graph breaks at each, and each new count is a new shape.
Bad:   for e, m in enumerate(experts): idx = (sel == e).nonzero().squeeze(-1); out = out.index_add(0, idx, m(x[idx]))
Good:  for e, m in enumerate(experts): out = out + torch.where((sel == e)[:, None], m(x), 0)   # dense: every expert on every row
For many experts sort the rows by expert and use one grouped product: torch_npu.npu_grouped_matmul with npu_moe_init_routing on Ascend.
Source: pytorch/pytorch issue 117628, huggingface/diffusers PR 11477.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from npulift.capture import Capture, DataDependence, Op
from npulift.findings import Finding, Location, Severity
from npulift.messages import _
from npulift.rules.data_branch import advice, rewrite_at
from npulift.rules.families import compiles_static_shapes, family, is_npu
from npulift.targets.base import Target

CODE = "NPU223"
NAME = "expert-loop"
_PICK = ("aten::nonzero", "aten::index", "aten::nonzero_numpy", "aten::masked_select")
_WORK = ("aten::linear", "aten::addmm", "aten::mm", "aten::matmul", "aten::bmm", "aten::conv2d", "aten::convolution")


@dataclass(frozen=True)
class Loop:
    """sites: how often rows are picked.   location: of the first.   lines: of all of them.   rows: of the tensor picked from; picked: rows picked in the eager pass, None when unknown."""

    sites: int
    operator: str
    location: Location | None
    module: str
    lines: frozenset[tuple[str, int]]
    rows: int | None
    picked: int | None

    @property
    def flop_factor(self) -> float | None:
        """How many times the experts' work the dense form is."""
        return self.sites * self.rows / self.picked if self.rows and self.picked else None


def loops(capture: Capture) -> list[Loop]:
    """Lines that pick rows twice or more, with work of sub-modules on what was picked."""
    found = []
    by_line: dict[tuple[str, int], list[Op]] = {}
    sized = {(s.location.file, s.location.line) for s in capture.data_dependent if s.kind == "size" and s.location}
    for op in capture.eager_ops or capture.exported_ops:
        if op.base in _PICK and op.location and (op.location.file, op.location.line) in sized:
            by_line.setdefault((op.location.file, op.location.line), []).append(op)
    for key, ops in by_line.items():
        first = [o for o in ops if o.base == "aten::nonzero"] or ops
        workers = {o.module for o in capture.eager_ops or capture.exported_ops if (o.base in _WORK and o.module and o.module.rpartition(".")[2].isdigit()) or (o.base in _WORK and ".experts" in f".{o.module}")}
        if len(first) < 2 or len(workers) < 2:
            continue
        own_function = {k for k in sized if k[0] == key[0] and first[0].location is not None and _same_function(capture, k, first[0].location)}
        rows = first[0].inputs[0].shape[0] if first[0].inputs and first[0].inputs[0].shape else None
        picked = sum(int(o.outputs[0].shape[0]) for o in first if isinstance(o.outputs[0].shape[0], int)) if first[0].origin == "eager" else None
        found.append(Loop(len(first), first[0].base, first[0].location, first[0].module, frozenset(own_function | {key}), rows if isinstance(rows, int) else None, picked))
        break
    return found


def _same_function(capture: Capture, key: tuple[str, int], location: Location) -> bool:
    return any(s.location and (s.location.file, s.location.line) == key and s.location.function == location.function for s in capture.data_dependent)


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for the loop, however many sites it has."""
    for loop in loops(capture):
        spot = DataDependence("size", loop.location, loop.operator, "", loop.module)
        factor = loop.flop_factor
        fix, details = advice(rewrite_at(capture, spot), _("Dense form: compute every expert on every row and weight by the routing mask."))
        fix += " " + (_("The dense form computes {factor:.0f} times the experts' work (FLOP x{factor:.0f}), so it pays for few experts.").format(factor=factor) if factor else _(
            "The dense form computes every expert on every row, so it pays for few experts."))
        if family(target) == "ascend":
            fix += " " + _("For many experts sort the rows by expert and use torch_npu.npu_grouped_matmul with the npu_moe_* routing operators.")
        else:
            fix += " " + _("For many experts sort the rows by expert and pad each to a capacity.")
        severity = Severity.ERROR if compiles_static_shapes(target) else Severity.WARNING if is_npu(target) else Severity.INFO
        yield Finding(
            CODE, NAME, severity,
            _("{n} sites of {operator} have one root cause: a loop over experts picks the rows of each (mixture of experts), with a host sync and a data-dependent size at every one.").format(
                n=loop.sites, operator=loop.operator),
            loop.location, loop.module, fix, details={"sites": loop.sites, "operator": loop.operator, "flop_factor": factor, "lines": sorted(f"{f}:{n}" for f, n in loop.lines), **details},
        )
