"""Compute a transposed convolution by inserting zeros and convolving.

Applies to conv_transpose2d with constant weights, static sizes, a stride over 2 in some axis, and no dilation. Zeros are inserted by padding a reshaped tensor, so no scatter is needed.
Exact but for rounding. Costs stride^2 times the multiply-adds (most with zeros).
Pays where the compiler takes a stride of at most 2 (Ethos-U: ConvTranspose2d with stride 3 stopped the compilation, executorch issue 17668).
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


def _pair(value: Any) -> tuple[int, int]:
    values = list(value) if isinstance(value, list | tuple) else [value]
    return (values[0], values[0]) if len(values) == 1 else (values[0], values[1])


def _arguments(node: Node) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], int, tuple[int, int]]:
    given = [*node.args[3:], *(1, 0, 0, 1, 1)[len(node.args) - 3 :]]
    return _pair(given[0]), _pair(given[1]), _pair(given[2]), int(given[3]), _pair(given[4])


def match(module: GraphModule) -> Iterator[Node]:
    """Transposed convolutions with a stride over 2."""
    for node in graphs.calls(module.graph, _aten.conv_transpose2d.input):
        stride, padding, _extra, _groups, dilation = _arguments(node)
        weight = graphs.attribute(module, node.args[1])
        if weight is not None and max(stride) > 2 and dilation == (1, 1) and graphs.is_static(node) and all(p < k for p, k in zip(padding, weight.shape[2:], strict=True)):
            yield node


def replace(module: GraphModule, node: Node) -> bool:
    """Zeros between the pixels, then a convolution with the turned kernel."""
    weight = graphs.attribute(module, node.args[1])
    assert weight is not None
    stride, padding, extra, groups, _dilation = _arguments(node)
    shape: Any = graphs.shape(node.args[0])
    batch, channels, height, width = shape
    kernel = weight.shape[2:]
    value = graphs.call(module, node, _aten.reshape.default, node.args[0], [batch * channels, height, 1, width, 1])
    value = graphs.call(module, node, _aten.constant_pad_nd.default, value, [0, stride[1] - 1, 0, 0, 0, stride[0] - 1])
    value = graphs.call(module, node, _aten.reshape.default, value, [batch, channels, height * stride[0], width * stride[1]])
    # The zeros after the last pixel are stride - 1 too many; what the convolution needs around is kernel - 1 - padding (and the extra at the end).
    bottom, right = kernel[0] - 1 - padding[0] + extra[0] - (stride[0] - 1), kernel[1] - 1 - padding[1] + extra[1] - (stride[1] - 1)
    top, left = kernel[0] - 1 - padding[0], kernel[1] - 1 - padding[1]
    value = graphs.call(module, node, _aten.constant_pad_nd.default, value, [left, right, top, bottom])
    per_group = weight.view(groups, weight.shape[0] // groups, *weight.shape[1:]).transpose(1, 2).flip(-1, -2)
    turned = per_group.reshape(weight.shape[1] * groups, weight.shape[0] // groups, *kernel).contiguous()
    constant = graphs.add_constant(module, node, turned, "turned_weight")
    value = graphs.call(module, node, _aten.conv2d.default, value, constant, node.args[2] if len(node.args) > 2 else None, [1, 1], [0, 0], [1, 1], groups)
    graphs.replace_all(module, node, value)
    return True


REWRITE = Rewrite("NPU523", "transposed-conv-as-conv", N_("Compute a transposed convolution with a stride over 2 by inserting zeros and convolving."), match, replace,
                  families=("ethos-u", "rknn", "qnn"), gain=0.2)
