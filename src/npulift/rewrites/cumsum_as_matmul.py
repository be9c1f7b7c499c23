"""Take a cumulative sum as a product with a triangular matrix of ones.

Applies to floating-point cumsum along an axis of static size, at most 2,048. Exact but for rounding: the terms are the same, added in another order; an infinity or NaN spreads to the
sums before it.
Pays where cumsum is missing or serial (RKNN, Ethos-U55, AI CPU on older Ascend); it costs n/2 times the additions, on the matrix unit.
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
LIMIT = 2048


def match(module: GraphModule) -> Iterator[Node]:
    """Cumulative sums of static length."""
    for node in graphs.calls(module.graph, _aten.cumsum.default):
        value, shape = node.meta.get("val"), graphs.shape(node.args[0])
        if isinstance(value, torch.Tensor) and value.is_floating_point() and shape and not node.kwargs.get("dtype"):
            size = shape[int(node.args[1])]
            if isinstance(size, int) and 1 < size <= LIMIT:
                yield node


def replace(module: GraphModule, node: Node) -> bool:
    """Put a product there; the axis goes last and comes back."""
    shape: Any = graphs.shape(node.args[0])
    axis = int(node.args[1]) % len(shape)
    triangle = torch.triu(torch.ones(shape[axis], shape[axis], dtype=node.meta["val"].dtype))
    matrix = graphs.add_constant(module, node, triangle, "triangle")
    last = axis == len(shape) - 1
    value: Any = node.args[0] if last else graphs.call(module, node, _aten.transpose.int, node.args[0], axis, -1)
    value = graphs.call(module, node, _aten.matmul.default, value, matrix)
    graphs.replace_all(module, node, value if last else graphs.call(module, node, _aten.transpose.int, value, axis, -1))
    return True


REWRITE = Rewrite("NPU522", "cumsum-as-matmul", N_("Take a cumulative sum as a product with a triangular matrix of ones."), match, replace, families=("rknn", "ethos-u", "qnn", "ascend"), gain=0.1)
