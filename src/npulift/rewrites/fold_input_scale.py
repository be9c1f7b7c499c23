"""Fold a constant scale or shift of the input into the convolution or linear layer that follows (normalisation of images, division by 255).

Applies to mul, div, add and sub by a number or one value a channel, whose only user is a layer with constant weights. A shift is folded only without padding: zeros that the
layer pads with were not shifted. Changes results by rounding only: w' = w * s by input channel, b' = b + sum(w * t).
Pays everywhere: preprocessing becomes free.
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
_CONVOLUTIONS = {_aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default}


def match(module: GraphModule) -> Iterator[Node]:
    """Scales and shifts in front of a layer."""
    for node in graphs.calls(module.graph, *MUL, *DIV, *ADD, *SUB, _aten.rsub.Scalar):
        if _find(module, node) is not None:
            yield node


def _find(module: GraphModule, node: Node) -> tuple[Node, Any, torch.Tensor, bool] | None:
    """(layer, what is scaled, one value an input channel, whether it is the first operand)."""
    if not plain(node) or not single(node):
        return None
    (layer,) = node.users
    if not is_call(layer, _aten.linear.default, *_CONVOLUTIONS) or layer.args[0] is not node or any(graphs.attribute(module, a) is None for a in layer.args[1:3] if a is not None):
        return None
    weight = graphs.attribute(module, layer.args[1])
    assert weight is not None
    linear = layer.target is _aten.linear.default
    rank = node.meta["val"].ndim
    if not linear and rank != weight.ndim:
        return None
    padding: Any = layer.args[4] if not linear and len(layer.args) > 4 else [0]
    padded = any(padding) if isinstance(padding, list | tuple) else bool(padding)
    if padded and node.target in (*ADD, *SUB, _aten.rsub.Scalar):
        return None
    groups: Any = layer.args[6] if not linear and len(layer.args) > 6 else 1
    channels = weight.shape[1] * groups
    for position in (0,) if node.target is _aten.rsub.Scalar else (0, 1):
        source, value = node.args[position], node.args[1 - position]
        if not isinstance(source, Node) or graphs.attribute(module, source) is not None or not same_shape(source, node) or (position and node.target in DIV):
            continue
        if source.meta["val"].dtype != node.meta["val"].dtype or is_call(source, _aten.linear.default, *_CONVOLUTIONS):
            continue  # after a layer it is folded there
        values = _by_channel(module, value, channels, -1 if linear else 1 - rank)
        if values is not None and not (node.target in DIV and bool((values == 0).any())):
            return layer, source, values, position == 0 and node.target is not _aten.rsub.Scalar
    return None


def _by_channel(module: GraphModule, value: Any, count: int, channel: int) -> torch.Tensor | None:
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
    layer, source, values, first = found
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
    groups = (weight.ndim > 2 and len(layer.args) > 6 and int(layer.args[6])) or 1
    per_out = weight.shape[0] // groups
    rows = torch.stack([scale.view(groups, -1)[o // per_out] for o in range(weight.shape[0])])
    shifts = torch.stack([shift.view(groups, -1)[o // per_out] for o in range(weight.shape[0])])
    tail = [1] * (weight.ndim - 2)
    wide = weight.double()
    moved = (wide * shifts.view(*shifts.shape, *tail)).flatten(1).sum(1) + (bias.double() if bias is not None else 0)
    args: list[Any] = [source, graphs.add_constant(module, layer, (wide * rows.view(*rows.shape, *tail)).to(weight.dtype), "scaled_weight"), *layer.args[2:]]
    if bias is not None or bool(moved.any()):
        args[2:3] = [graphs.add_constant(module, layer, moved.to(weight.dtype), "scaled_bias")]
    layer.args = tuple(args)
    module.graph.erase_node(node)
    return True


REWRITE = Rewrite("NPU528", "fold-input-scale", N_("Fold a constant scale or shift of the input into the layer that follows."), match, replace, gain=0.9)
