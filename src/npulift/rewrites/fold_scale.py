"""Fold a constant scale or shift into the convolution or linear layer before it (layer scale, output normalisation, bias added apart).

Applies to mul, div, add and sub by a number or by a constant with one value a channel, when the layer's weights are constants and its result has no other user.
Changes results by rounding only: w' = w * s, b' = b * s + t.
Pays everywhere: one pass over the activations less (ConvNeXt, DINOv2 and BEiT scale each branch so).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from npulift import graphs
from npulift.messages import N_
from npulift.rewrites.operands import ADD, DIV, MUL, SUB, is_call, plain, same_shape, single
from npulift.rewriting import Rewrite

_aten = torch.ops.aten
_CONVOLUTIONS = {_aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default, _aten.conv1d.padding, _aten.conv2d.padding, _aten.conv3d.padding}


def match(module: GraphModule) -> Iterator[Node]:
    """Scales and shifts that can be folded."""
    for node in graphs.calls(module.graph, *MUL, *DIV, *ADD, *SUB, _aten.rsub.Scalar):
        if _find(module, node) is not None:
            yield node


def _find(module: GraphModule, node: Node) -> tuple[Node, torch.Tensor, bool] | None:
    """(layer, one value a channel, whether the layer is the first operand)."""
    if not plain(node):
        return None
    for position in (0,) if node.target is _aten.rsub.Scalar else (0, 1):
        layer, other = node.args[position], node.args[1 - position]
        if not (single(layer) and is_call(layer, _aten.linear.default, *_CONVOLUTIONS)) or not same_shape(layer, node):
            continue
        assert isinstance(layer, Node)
        if (position and node.target in DIV) or layer.meta["val"].dtype != node.meta["val"].dtype:
            continue
        if any(a is not None and graphs.attribute(module, a) is None for a in layer.args[1:3]):
            continue
        weight: Any = layer.args[1]
        channel = -1 if layer.target is _aten.linear.default else 1 - weight.meta["val"].ndim
        values = _by_channel(module, other, layer, channel)
        if values is not None and not (node.target in DIV and bool((values == 0).any())):
            return layer, values, position == 0 and node.target is not _aten.rsub.Scalar
    return None


def _by_channel(module: GraphModule, value: Any, layer: Node, channel: int) -> torch.Tensor | None:
    weight = graphs.attribute(module, layer.args[1])
    assert weight is not None
    count = weight.shape[0]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return torch.full((count,), float(value), dtype=torch.float64)
    tensor = graphs.attribute(module, value)
    if tensor is None or not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
        return None
    if tensor.numel() == 1:
        return tensor.double().reshape(1).expand(count)
    if tensor.ndim < -channel or tensor.numel() != count or tensor.shape[channel] != count:
        return None
    return tensor.double().reshape(-1)


def replace(module: GraphModule, node: Node) -> bool:
    """Put it into the weights."""
    found = _find(module, node)
    if found is None:
        return False
    layer, values, first = found
    weight = graphs.attribute(module, layer.args[1])
    bias = graphs.attribute(module, layer.args[2]) if len(layer.args) > 2 else None
    assert weight is not None
    scale, shift = torch.ones_like(values), torch.zeros_like(values)
    if node.target in (*MUL, *DIV):
        scale = values if node.target in MUL else 1 / values
    elif node.target in ADD:
        shift = values
    elif first:
        shift = -values
    else:
        scale, shift = -scale, values
    moved = (bias.double() * scale if bias is not None else 0) + shift
    args: list[Any] = list(layer.args)
    if node.target not in ADD:
        args[1] = graphs.add_constant(module, layer, (weight.double() * scale.view(-1, *[1] * (weight.ndim - 1))).to(weight.dtype), "scaled_weight")
    if bias is not None or bool(moved.any()):
        args[2:3] = [graphs.add_constant(module, layer, moved.to(weight.dtype), "scaled_bias")]
    layer.args = tuple(args)
    graphs.replace_all(module, node, layer)
    return True


REWRITE = Rewrite("NPU527", "fold-scale", N_("Fold a constant scale or shift into the convolution or linear layer before it."), match, replace, gain=0.9)
