"""Write glu as a split, a sigmoid and a product.

Applies to F.glu. Exact: it is the definition (Dauphin 2017, https://arxiv.org/abs/1612.08083).
Pays where the compiler has no glu (ONNX, Qualcomm HTP, Ethos-U, RKNN take the parts).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from npulift import graphs
from npulift.messages import N_
from npulift.rewriting import Rewrite

_aten = torch.ops.aten


def match(module: GraphModule) -> Iterator[Node]:
    """Every glu along an axis of static size."""
    for node in graphs.calls(module.graph, _aten.glu.default):
        shape = graphs.shape(node.args[0])
        if shape and isinstance(shape[_axis(node)], int):
            yield node


def _axis(node: Node) -> int:
    return int(node.args[1]) if len(node.args) > 1 else -1  # type: ignore[arg-type]


def replace(module: GraphModule, node: Node) -> bool:
    """Put the parts there."""
    axis = _axis(node)
    half = int((graphs.shape(node.args[0]) or ())[axis]) // 2
    value = graphs.call(module, node, _aten.slice.Tensor, node.args[0], axis, 0, half)
    gate = graphs.call(module, node, _aten.slice.Tensor, node.args[0], axis, half, 2 * half)
    gate = graphs.call(module, node, _aten.sigmoid.default, gate)
    graphs.replace_all(module, node, graphs.call(module, node, _aten.mul.Tensor, value, gate))
    return True


REWRITE = Rewrite("NPU543", "glu-as-parts", N_("Write glu as a split, a sigmoid and a product."), match, replace, families=("qnn", "ethos-u", "rknn"), gain=0.1)
