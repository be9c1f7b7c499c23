"""Write roll as slices and concatenations (shifted windows of Swin).

Applies to roll with constant shifts and named axes of static size. Exact.
Pays where the compiler has no roll (Ethos-U, RKNN, ONNX), and where it is a gather on the AI CPU.
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


def match(module: GraphModule) -> Iterator[Node]:
    """Rolls along named axes."""
    for node in graphs.calls(module.graph, _aten.roll.default):
        shape = graphs.shape(node.args[0])
        axes: Any = node.args[2] if len(node.args) > 2 else []
        if axes and shape is not None and all(isinstance(shape[a], int) and shape[a] > 0 for a in axes) and all(isinstance(s, int) for s in _list(node.args[1])):
            yield node


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def replace(module: GraphModule, node: Node) -> bool:
    """Put the end before the beginning, axis by axis."""
    value: Any = node.args[0]
    shape: Any = graphs.shape(value)
    for shift, axis in zip(_list(node.args[1]), _list(node.args[2]), strict=True):
        size = shape[axis]
        cut = (size - shift) % size
        if cut:
            tail = graphs.call(module, node, _aten.slice.Tensor, value, axis, cut, size)
            head = graphs.call(module, node, _aten.slice.Tensor, value, axis, 0, cut)
            value = graphs.call(module, node, _aten.cat.default, [tail, head], axis)
    if value is node.args[0]:
        value = graphs.call(module, node, _aten.clone.default, value)
    graphs.replace_all(module, node, value)
    return True


REWRITE = Rewrite("NPU534", "roll-as-slices", N_("Write roll as slices and concatenations."), match, replace, families=("ethos-u", "rknn", "qnn", "ascend"), gain=0.2)
