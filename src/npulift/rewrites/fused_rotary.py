"""Recognise a rotary embedding that is spelled out with rotate_half, and compute it by Ascend's fused operator (npu_rotary_mul).

Applies to x * cos + cat(-x[..., d/2:], x[..., :d/2]) * sin of four axes, in any order of the operands (transformers' Llama, Qwen, Mistral, Gemma and kin), when cos and sin have
x's dtype and sizes, or size 1 where they broadcast. Changes results by rounding only.
Pays on Ascend: one kernel instead of seven. The graph holds npulift::rotary_mul, which is the formula on the CPU and npu_rotary_mul on the card; not tried on a card here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from npulift import graphs
from npulift.messages import N_
from npulift.rewrites.operands import ADD, MUL, is_call, orders, same_shape, single
from npulift.rewriting import Rewrite

_aten = torch.ops.aten


def match(module: GraphModule) -> Iterator[Node]:
    """The sum at the end of each."""
    for node in graphs.calls(module.graph, *ADD):
        if _find(node) is not None:
            yield node


def _find(node: Node) -> tuple[Node, Node, Node] | None:
    """(x, cos, sin)."""
    for straight, turned in orders(node):
        if not (single(straight) and single(turned) and is_call(straight, *MUL) and is_call(turned, *MUL)):
            continue
        for half, sin in orders(turned):
            x = _rotated(half)
            if x is None or not isinstance(sin, Node):
                continue
            for other, cos in orders(straight):
                if other is x and isinstance(cos, Node) and _fits(x, cos) and _fits(x, sin) and same_shape(x, node):
                    return x, cos, sin
    return None


def _fits(x: Node, table: Node) -> bool:
    size, wanted = graphs.shape(table), graphs.shape(x)
    return size is not None and wanted is not None and len(size) == len(wanted) == 4 and table.meta["val"].dtype == x.meta["val"].dtype and str(size[-1]) == str(wanted[-1])


def _rotated(node: Any) -> Node | None:
    """x, for cat(-x[..., d/2:], x[..., :d/2])."""
    if not is_call(node, _aten.cat.default) or len(node.args[0]) != 2:
        return None
    rank = node.meta["val"].ndim
    negative, first = node.args[0]
    axis = node.args[1] if len(node.args) > 1 else 0
    if axis not in (-1, rank - 1) or not is_call(negative, _aten.neg.default):
        return None
    second: Any = negative.args[0]
    if is_call(first, graphs.GETITEM) and is_call(second, graphs.GETITEM):
        cut: Any = first.args[0]
        halves = is_call(cut, _aten.chunk.default, _aten.split.Tensor) and cut is second.args[0] and (first.args[1], second.args[1]) == (0, 1) and len(cut.meta["val"]) == 2
        return cut.args[0] if halves and cut.args[2:3] in ((-1,), (rank - 1,)) and same_shape(first, second) else None
    if not (is_call(first, _aten.slice.Tensor) and is_call(second, _aten.slice.Tensor)) or first.args[0] is not second.args[0]:
        return None
    x: Any = first.args[0]
    width = (graphs.shape(x) or (None,))[-1]
    if not isinstance(width, int) or width % 2:
        return None
    low, high = (_range(n, rank, width) for n in (first, second))
    return x if low == (0, width // 2) and high == (width // 2, width) else None


def _range(node: Node, rank: int, width: int) -> tuple[int, int] | None:
    axis, start, end, step = (*node.args[1:], *(0, None, None, 1)[len(node.args) - 1 :])
    if axis not in (-1, rank - 1) or step != 1 or not isinstance(start or 0, int) or not isinstance(end, int | None):
        return None
    first, last, _step = slice(start, end).indices(width)  # type: ignore[misc]
    return first, last


def replace(module: GraphModule, node: Node) -> bool:
    """Put the operator there."""
    found = _find(node)
    if found is None:
        return False
    graphs.replace_all(module, node, graphs.call(module, node, torch.ops.npulift.rotary_mul.default, *found))
    return True


REWRITE = Rewrite("NPU546", "fused-rotary", N_("Compute a rotary embedding by Ascend's fused operator (npu_rotary_mul)."), match, replace, families=("ascend",), gain=0.8)
