"""Compute q, k and v by three linear layers instead of one whose result is cut in three.

Applies to a linear layer with constant weights whose only users take disjoint parts of its last axis: chunk, split or narrow slices, and view + permute + unbind (or select)
where the three-way axis is the outermost part of the last axis. Exact: the same rows of the weight, in the same order.
Pays on Qualcomm HTP, where each slice of the fused result becomes hundreds of copies (two ViT blocks: 1,970 Hexagon operators before, 788 after, by the compiler's
schematic; a vendor's estimate, not a latency). On CPUs one larger product is faster, so it is offered for qnn only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from npulift import graphs
from npulift.messages import N_
from npulift.rewriting import Rewrite

_aten = torch.ops.aten
_CUTS = (_aten.chunk.default, _aten.split.Tensor, _aten.split_with_sizes.default)


def match(module: GraphModule) -> Iterator[Node]:
    """Linear layers whose result is cut."""
    for node in graphs.calls(module.graph, _aten.linear.default):
        if graphs.attribute(module, node.args[1]) is not None and (_by_cut(node) or _by_axis(node)):
            yield node


def _by_cut(node: Node) -> bool:
    if len(node.users) != 1:
        return False
    (cut,) = node.users
    rank = node.meta["val"].ndim
    if cut.target not in _CUTS or len(cut.args) < 3 or int(cut.args[2]) % rank != rank - 1:
        return False
    return all(u.target is graphs.GETITEM for u in cut.users)


def _by_axis(node: Node) -> tuple[Node, int, Node] | None:
    """(view, axis of the 3, permutation or the view itself) for view(.., 3, h, d) -> permute -> unbind(0) or select(0, i)."""
    if len(node.users) != 1:
        return None
    (view,) = node.users
    shape, before = graphs.shape(view), graphs.shape(node)
    if view.target not in (_aten.view.default, _aten.reshape.default, _aten.unflatten.int) or shape is None or before is None or len(view.users) != 1:
        return None
    axis = len(before) - 1
    if len(shape) <= axis or shape[axis] != 3 or list(map(str, shape[:axis])) != list(map(str, before[:-1])):
        return None
    (moved,) = view.users
    if moved.target is not _aten.permute.default or len(moved.args[1]) != len(shape) or moved.args[1][0] != axis:
        return None
    for user in moved.users:
        if user.target is _aten.unbind.int and (len(user.args) < 2 or user.args[1] == 0):
            if any(u.target is not graphs.GETITEM for u in user.users):
                return None
        elif not (user.target is _aten.select.int and user.args[1] == 0 and isinstance(user.args[2], int)):
            return None
    return view, axis, moved


def _part(module: GraphModule, node: Node, start: int, end: int) -> Node:
    weight, bias = graphs.attribute(module, node.args[1]), graphs.attribute(module, node.args[2]) if len(node.args) > 2 else None
    assert weight is not None
    w = graphs.add_constant(module, node, weight[start:end].contiguous(), "part_weight")
    b = graphs.add_constant(module, node, bias[start:end].contiguous(), "part_bias") if bias is not None else None
    return graphs.call(module, node, _aten.linear.default, node.args[0], w, b)


def replace(module: GraphModule, node: Node) -> bool:
    """Put one linear layer for each part."""
    return _replace_cut(module, node) if _by_cut(node) else _replace_axis(module, node)


def _replace_cut(module: GraphModule, node: Node) -> bool:
    (cut,) = node.users
    sizes = [int(v.shape[-1]) for v in cut.meta["val"]]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    for user in list(cut.users):
        index: Any = user.args[1]
        part = _part(module, node, starts[index], starts[index] + sizes[index])
        graphs.replace_all(module, user, part)
    module.graph.erase_node(cut)
    module.graph.erase_node(node)
    return True


def _replace_axis(module: GraphModule, node: Node) -> bool:
    found = _by_axis(node)
    if found is None:
        return False
    view, axis, moved = found
    shape = graphs.shape(view)
    assert shape is not None
    order = [a - (a > axis) for a in moved.args[1][1:]]
    target: Any = [s if isinstance(s, int) else -1 for i, s in enumerate(shape) if i != axis]
    if target.count(-1) > 1:
        return False
    width = int(node.meta["val"].shape[-1]) // 3
    parts: dict[int, Node] = {}

    def part(index: int) -> Node:
        if index not in parts:
            linear = _part(module, node, index * width, (index + 1) * width)
            linear = graphs.call(module, node, _aten.reshape.default, linear, target)
            parts[index] = graphs.call(module, node, _aten.permute.default, linear, order)
        return parts[index]

    for user in list(moved.users):
        if user.target is _aten.unbind.int:
            for item in list(user.users):
                graphs.replace_all(module, item, part(int(item.args[1])))
            module.graph.erase_node(user)
        else:
            graphs.replace_all(module, user, part(int(user.args[2]) % 3))
    for dead in (moved, view, node):
        module.graph.erase_node(dead)
    return True


REWRITE = Rewrite("NPU512", "split-qkv", N_("Compute q, k and v by three linear layers instead of one whose result is cut in three."), match, replace, families=("qnn",), gain=0.3)
