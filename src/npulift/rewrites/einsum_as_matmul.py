"""Write einsum as a permutation, one matrix product and a permutation.

Applies to einsum of two operands with static shapes, without repeated letters in one operand; an ellipsis is left alone. Exact but for rounding.
Pays where the compiler or exporter has no Einsum (Qualcomm HTP, Ethos-U, RKNN), or takes it apart badly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from npulift import graphs
from npulift.messages import N_
from npulift.rewriting import Rewrite

_aten = torch.ops.aten


def match(module: GraphModule) -> Iterator[Node]:
    """Products of two operands."""
    for node in graphs.calls(module.graph, _aten.einsum.default):
        if _plan(node) is not None:
            yield node


def _plan(node: Node) -> tuple[str, str, str] | None:
    equation: Any = str(node.args[0]).replace(" ", "")
    operands: Any = node.args[1]
    if "." in equation or len(operands) != 2 or not all(graphs.is_static(o) for o in operands) or (len(node.args) > 2 or node.kwargs.get("path")):
        return None
    inputs, arrow, output = equation.partition("->")
    left, comma, right = inputs.partition(",")
    if not arrow:
        letters = left + right
        output = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    if not comma or any(len(set(p)) != len(p) for p in (left, right, output)) or not set(output) <= set(left + right):
        return None
    shapes = [graphs.shape(o) or () for o in operands]
    sizes: dict[str, int] = {}
    for letters, shape in zip((left, right), shapes, strict=True):
        if len(letters) != len(shape):
            return None
        for letter, size in zip(letters, shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                return None  # broadcasting of size 1
    if any(c not in output and not (c in left and c in right) for c in left + right):
        return None  # a letter that is summed in one operand alone
    return left, right, output


def replace(module: GraphModule, node: Node) -> bool:
    """Batch letters first, then the free ones, with those that are summed between."""
    plan = _plan(node)
    if plan is None:
        return False
    left, right, output = plan
    operands: Any = node.args[1]
    a, b = operands
    sizes = dict(zip(left + right, (*(graphs.shape(a) or ()), *(graphs.shape(b) or ())), strict=True))
    batch = [c for c in output if c in left and c in right]
    summed = [c for c in left if c in right and c not in output]
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]

    def arranged(value: Any, letters: str, order: list[str], shape: list[int]) -> Any:
        axes = [letters.index(c) for c in order]
        if axes != list(range(len(axes))):
            value = graphs.call(module, node, _aten.permute.default, value, axes)
        return graphs.call(module, node, _aten.reshape.default, value, shape)

    def total(letters: list[str]) -> int:
        return math.prod(sizes[c] for c in letters)

    lead = [total(batch)] if batch else []
    first = arranged(a, left, batch + rows + summed, [*lead, total(rows), total(summed)])
    second = arranged(b, right, batch + summed + columns, [*lead, total(summed), total(columns)])
    value = graphs.call(module, node, _aten.matmul.default, first, second)
    got = batch + rows + columns
    value = graphs.call(module, node, _aten.reshape.default, value, [sizes[c] for c in got])
    order = [got.index(c) for c in output]
    if order != list(range(len(order))):
        value = graphs.call(module, node, _aten.permute.default, value, order)
    graphs.replace_all(module, node, value)
    return True


REWRITE = Rewrite("NPU535", "einsum-as-matmul", N_("Write einsum as a permutation, one matrix product and a permutation."), match, replace, gain=0.1)
