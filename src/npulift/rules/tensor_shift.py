"""NPU145 tensor-shift: bits are shifted by an amount that is a tensor.

Why it hurts: a shift by a zero-dimensional int64 tensor runs RightShift on the AI CPU, which crashed on 910B (aicpu exception, retCode 0x2a, 507018); since errors are
reported late, a later operator (repeat_interleave in the report) gets the blame.
Bad:   (qweight >> (self.order[j] * 4)) & 0xF
Good:  ORDER = (0, 4, 1, 5, 2, 6, 3, 7); (qweight >> (ORDER[j] * 4)) & 0xF
Source: triton-lang/triton-ascend issue 472.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from npulift.capture import Capture, Op
from npulift.findings import Finding, Severity
from npulift.messages import _, ngettext
from npulift.precision.values import graph_of, runnable, values_of
from npulift.rules.families import family, is_npu
from npulift.targets.base import Target

CODE = "NPU145"
NAME = "tensor-shift"
SHIFTS = {f"aten::{n}" for n in ("__rshift__", "__lshift__", "__irshift__", "__ilshift__", "bitwise_right_shift", "bitwise_left_shift")}


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for each line with such shifts."""
    if not is_npu(target):
        return
    by_line: dict[object, list[Op]] = {}
    for op in capture.exported_ops or capture.eager_ops:
        if op.base in SHIFTS and len(op.inputs) > 1:
            by_line.setdefault(op.location, []).append(op)
    for ops in by_line.values():
        first, n = ops[0], len(ops)
        amount = first.inputs[1]
        constants = constant_shifts(capture, ops)
        details: dict[str, object] = {"occurrences": n, "shift_dtype": amount.dtype, "shift_shape": list(amount.shape)}
        message = ngettext("{n} bit shift ({name}) takes its amount from a {rank}-d {dtype} tensor.", "{n} bit shifts ({name}) take their amount from a {rank}-d {dtype} tensor.",
                           n).format(n=n, name=first.base, rank=len(amount.shape), dtype=amount.dtype)
        if family(target) == "ascend":
            message += " " + _("On Ascend it runs on the AI CPU, where it was seen to crash (507018); a later operator gets the blame.")
        fix = _("Use Python integers for the amounts.")
        if constants is not None:
            amounts, equal = constants
            details |= {"amounts": amounts, "constant_shift_equal": equal}
            if equal:
                fix += " " + _("The amounts are constant here ({amounts}), and constant shifts give equal results (checked on the example inputs).").format(
                    amounts=", ".join(map(str, amounts)))
        yield Finding(CODE, NAME, Severity.ERROR if family(target) == "ascend" else Severity.WARNING, message, first.location, first.module, fix, details=details)


def constant_shifts(capture: Capture, ops: list[Op]) -> tuple[list[int], bool] | None:
    """(amounts, whether shifting by these integers gives the same), when the amounts depend on no input; None otherwise."""
    if not runnable(capture):
        return None
    nodes = {n.name: n for n in graph_of(capture).graph.nodes}
    wanted = [nodes[o.node] for o in ops if o.node in nodes]
    if not wanted or any(len(n.args) < 2 or not isinstance(n.args[1], torch.fx.Node) or _depends_on_input(n.args[1]) for n in wanted):
        return None
    values = values_of(capture, [m.name for n in wanted for m in (n, *n.args[:2]) if isinstance(m, torch.fx.Node)])
    amounts, equal = [], True
    for node in wanted:
        value, amount = values.get(node.args[0].name), values.get(node.args[1].name)  # type: ignore[union-attr]
        if value is None or amount is None or amount.numel() != 1:
            return None
        amounts.append(int(amount))
        shifted = value << int(amount) if "lshift" in str(node.target) or "left" in str(node.target) else value >> int(amount)
        equal = equal and torch.equal(shifted, values[node.name])
    return amounts, equal


def _depends_on_input(node: torch.fx.Node) -> bool:
    seen, todo = set(), [node]
    while todo:
        current = todo.pop()
        if current.op == "placeholder":
            return True
        if current not in seen:
            seen.add(current)
            todo += current.all_input_nodes
    return False
