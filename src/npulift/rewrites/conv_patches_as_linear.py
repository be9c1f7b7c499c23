"""Compute a convolution whose kernel covers its input exactly, or whose stride equals its kernel, as a matrix product over patches.

Applies to conv3d and conv1d with constant weights, stride equal to kernel size, no padding, no dilation, one group, and static sizes that the kernel divides (the patch embedding
of video and vision-language models). Exact but for rounding.
Pays where the chip has no such convolution (Conv3D on Ascend 310P, Ethos-U) or a slow one.
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


def _arguments(node: Node) -> tuple[list[int], list[int], list[int], int]:
    dims = node.meta["val"].ndim - 2
    def full(index: int, default: int) -> list[int]:
        value: Any = node.args[index] if len(node.args) > index else default
        values = list(value) if isinstance(value, list | tuple) else [value]
        return values * dims if len(values) == 1 else values
    groups: Any = node.args[6] if len(node.args) > 6 else 1
    return full(3, 1), full(4, 0), full(5, 1), int(groups)


def match(module: GraphModule) -> Iterator[Node]:
    """Patch convolutions."""
    for node in graphs.calls(module.graph, _aten.conv3d.default, _aten.conv1d.default):
        weight = graphs.attribute(module, node.args[1])
        shape: Any = graphs.shape(node.args[0])
        if weight is None or shape is None or not all(isinstance(s, int) for s in shape[1:]) or len(shape) != weight.ndim:
            continue
        stride, padding, dilation, groups = _arguments(node)
        kernel = list(weight.shape[2:])
        if stride == kernel and not any(padding) and all(d == 1 for d in dilation) and groups == 1 and all(s % k == 0 for s, k in zip(shape[2:], kernel, strict=True)):
            yield node


def replace(module: GraphModule, node: Node) -> bool:
    """Cut the input into patches, multiply, put the patches back in place."""
    weight = graphs.attribute(module, node.args[1])
    assert weight is not None
    shape: Any = graphs.shape(node.args[0])
    kernel = list(weight.shape[2:])
    counts = [s // k for s, k in zip(shape[2:], kernel, strict=True)]
    dims = len(kernel)
    flat = graphs.add_constant(module, node, weight.reshape(weight.shape[0], -1).contiguous(), "patch_weight")
    split: Any = [-1, shape[1], *(n for pair in zip(counts, kernel, strict=True) for n in pair)]
    value = graphs.call(module, node, _aten.reshape.default, node.args[0], split)
    order = [0, *range(2, 2 + 2 * dims, 2), 1, *range(3, 3 + 2 * dims, 2)]
    value = graphs.call(module, node, _aten.permute.default, value, order)
    value = graphs.call(module, node, _aten.reshape.default, value, [-1, *counts, weight[0].numel()])
    value = graphs.call(module, node, _aten.linear.default, value, flat, node.args[2] if len(node.args) > 2 else None)
    value = graphs.call(module, node, _aten.permute.default, value, [0, dims + 1, *range(1, dims + 1)])
    graphs.replace_all(module, node, value)
    return True


REWRITE = Rewrite("NPU517", "conv-patches-as-linear", N_("Compute a convolution whose stride equals its kernel as a matrix product over patches."), match, replace, gain=0.2)
