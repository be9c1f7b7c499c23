"""Write unfold (im2col) as slices, a stack and a reshape.

Applies to F.unfold of 4-D tensors with static sizes and at most 64 positions in the kernel. Exact: the same elements, moved.
Pays where the compiler has no Im2Col (every edge NPU, ONNX), and where it is a gather with constant indices.
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
POSITIONS = 64


def _settings(node: Node) -> list[tuple[int, int]]:
    """kernel, dilation, padding, stride, each (height, width)."""
    given = (*node.args[1:], *(1, 1, 0, 1)[len(node.args) - 1 :])
    return [tuple(v) * 2 if isinstance(v, list | tuple) and len(v) == 1 else tuple(v) if isinstance(v, list | tuple) else (v, v) for v in given]  # type: ignore[misc]


def match(module: GraphModule) -> Iterator[Node]:
    """Static unfolds."""
    for node in graphs.calls(module.graph, _aten.im2col.default):
        if graphs.is_static(node) and len(graphs.shape(node.args[0]) or ()) == 4 and graphs.is_static(node.args[0]):
            kernel = _settings(node)[0]
            if kernel[0] * kernel[1] <= POSITIONS:
                yield node


def replace(module: GraphModule, node: Node) -> bool:
    """One slice for each position in the kernel."""
    kernel, dilation, padding, stride = _settings(node)
    source: Any = node.args[0]
    batch, channels, height, width = graphs.shape(source)  # type: ignore[misc]
    value = source
    if any(padding):
        value = graphs.call(module, node, _aten.constant_pad_nd.default, source, [padding[1], padding[1], padding[0], padding[0]])
    out = [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, d, p, s in zip((height, width), kernel, dilation, padding, stride, strict=True)]
    parts = []
    for i in range(kernel[0]):
        rows = graphs.call(module, node, _aten.slice.Tensor, value, 2, i * dilation[0], i * dilation[0] + (out[0] - 1) * stride[0] + 1, stride[0])
        for j in range(kernel[1]):
            parts.append(graphs.call(module, node, _aten.slice.Tensor, rows, 3, j * dilation[1], j * dilation[1] + (out[1] - 1) * stride[1] + 1, stride[1]))
    value = graphs.call(module, node, _aten.stack.default, parts, 2)
    graphs.replace_all(module, node, graphs.call(module, node, _aten.reshape.default, value, [batch, channels * len(parts), out[0] * out[1]]))
    return True


REWRITE = Rewrite("NPU536", "unfold-as-slices", N_("Write unfold as slices, a stack and a reshape."), match, replace, families=("ethos-u", "rknn", "qnn", "onnxruntime"), gain=0.1)
