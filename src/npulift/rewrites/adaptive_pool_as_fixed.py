"""Write adaptive average pooling with its kernel and stride, or as two products with constant matrices where they vary.

Applies to adaptive_avg_pool2d with static sizes: where the output size divides the input it is plain pooling, elsewhere each output is a mean over a window whose bounds are known,
which is a product with a constant matrix along each axis. Exact but for rounding on finite values.
Pays where the compiler takes fixed kernels only (Ethos-U, RKNN, ONNX export of odd sizes).
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
    """Static adaptive poolings to more than one cell."""
    for node in graphs.calls(module.graph, _aten.adaptive_avg_pool2d.default):
        before, after = graphs.shape(node.args[0]), graphs.shape(node)
        if before is None or after is None or not (graphs.is_static(node) and graphs.is_static(node.args[0])) or min(*before, *after) < 1:
            continue
        if tuple(after[-2:]) != (1, 1) and tuple(after[-2:]) != tuple(before[-2:]):
            yield node


def _matrix(size_in: int, size_out: int) -> torch.Tensor:
    """out x in; window i goes from floor(i * in / out) to ceil((i + 1) * in / out) (the documented rule of the operator)."""
    matrix = torch.zeros(size_out, size_in, dtype=torch.float64)
    for i in range(size_out):
        start, end = i * size_in // size_out, -(-(i + 1) * size_in // size_out)
        matrix[i, start:end] = 1 / (end - start)
    return matrix


def replace(module: GraphModule, node: Node) -> bool:
    """Put a pooling or two products there."""
    before: Any = graphs.shape(node.args[0])
    after: Any = graphs.shape(node)
    if all(b % a == 0 for b, a in zip(before[-2:], after[-2:], strict=True)):
        kernel = [b // a for b, a in zip(before[-2:], after[-2:], strict=True)]
        value = graphs.call(module, node, _aten.avg_pool2d.default, node.args[0], kernel, kernel)
    else:
        dtype = node.meta["val"].dtype
        columns = graphs.add_constant(module, node, _matrix(before[-1], after[-1]).T.contiguous().to(dtype), "pool_columns")
        rows = graphs.add_constant(module, node, _matrix(before[-2], after[-2]).to(dtype), "pool_rows")
        value = graphs.call(module, node, _aten.matmul.default, node.args[0], columns)
        value = graphs.call(module, node, _aten.matmul.default, rows, value)
    graphs.replace_all(module, node, value)
    return True


REWRITE = Rewrite("NPU537", "adaptive-pool-as-fixed", N_("Write adaptive average pooling with its kernel and stride, or as two products with constant matrices."), match, replace, gain=0.1)
