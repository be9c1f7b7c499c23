"""What the patterns of several rewrites have in common: constant numbers, constant factors, single users, the other operand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from npulift import graphs

_aten = torch.ops.aten
MUL, DIV = (_aten.mul.Tensor, _aten.mul.Scalar), (_aten.div.Tensor, _aten.div.Scalar)
ADD, SUB = (_aten.add.Tensor, _aten.add.Scalar), (_aten.sub.Tensor, _aten.sub.Scalar)
CASTS = (_aten.to.dtype, _aten._to_copy.default, _aten.type_as.default)


def number(module: GraphModule, value: Any) -> float | None:
    """The value of a Python number or of a constant tensor of one element without axes; None for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    tensor = graphs.attribute(module, value)
    return float(tensor) if tensor is not None and tensor.ndim == 0 and not tensor.is_complex() else None


def is_number(module: GraphModule, value: Any, wanted: float) -> bool:
    """True for a number within 1e-6 (relative) of the wanted one."""
    found = number(module, value)
    return found is not None and math.isclose(found, wanted, rel_tol=1e-6)


def single(node: Any) -> bool:
    """True for a node that one other uses, once."""
    return isinstance(node, Node) and len(node.users) == 1


def is_call(node: Any, *targets: Any) -> bool:
    """True for a node that calls one of these."""
    return isinstance(node, Node) and node.op == "call_function" and node.target in targets


def orders(node: Node) -> Iterator[tuple[Any, Any]]:
    """The two operands of a commutative operator, both ways round; nothing where add or sub has a factor of its own."""
    if len(node.args) >= 2 and node.kwargs.get("alpha", 1) == 1:
        yield node.args[0], node.args[1]
        yield node.args[1], node.args[0]


def plain(node: Node) -> bool:
    """True for add or sub without a factor of its own."""
    return bool(node.kwargs.get("alpha", 1) == 1 and len(node.args) == 2)


def same_shape(a: Any, b: Any) -> bool:
    """True when both nodes' sizes are known to be equal."""
    first, second = graphs.shape(a), graphs.shape(b)
    return first is not None and second is not None and list(map(str, first)) == list(map(str, second))


def factors(module: GraphModule, node: Any, depth: int = 6) -> tuple[float, list[Node]]:
    """(constant factor, the other factors) of a product, opened as far as its parts have no other user; the root is always opened."""
    constant, found = 1.0, []
    waiting: list[tuple[Any, int]] = [(node, 0)]
    while waiting:
        current, level = waiting.pop()
        value = number(module, current)
        if value is not None:
            constant *= value
        elif is_call(current, *MUL) and level < depth and (level == 0 or single(current)):
            waiting += [(a, level + 1) for a in current.args[:2]]
        elif is_call(current, *DIV) and level < depth and (level == 0 or single(current)) and len(current.args) == 2 and not current.kwargs:
            divisor = number(module, current.args[1])
            if divisor:
                constant /= divisor
                waiting.append((current.args[0], level + 1))
            else:
                found.append(current)
        elif isinstance(current, Node):
            found.append(current)
    return constant, found


def outermost(module: GraphModule, node: Node) -> bool:
    """False when the product goes on above: its only user multiplies it by a constant."""
    if not single(node):
        return True
    (user,) = node.users
    return not (is_call(user, *MUL, *DIV) and any(number(module, a) is not None for a in user.args[:2]))
