"""Fold batch norm into the convolution or linear layer before it (inference only).

Applies when the layer's output has one user, the statistics and weights are constants, and the norm does not train.
Changes results by rounding only: w' = w * g / sqrt(v + eps), b' = (b - m) * g / sqrt(v + eps) + beta.
Pays on every target whose compiler does not do it by itself; most do for convolutions, fewer for linear layers and transposed convolutions.
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
_CONVOLUTIONS = (_aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default, _aten.conv1d.padding, _aten.conv2d.padding, _aten.conv3d.padding)
_TRANSPOSED = (_aten.conv_transpose1d.default, _aten.conv_transpose2d.input, _aten.conv_transpose3d.input)


def match(module: GraphModule) -> Iterator[Node]:
    """Batch norms that can be folded."""
    for norm in graphs.calls(module.graph, _aten.batch_norm.default):
        layer = norm.args[0]
        if norm.args[5] or not isinstance(layer, Node) or len(layer.users) != 1:
            continue
        if layer.target not in (*_CONVOLUTIONS, *_TRANSPOSED) and not (layer.target is _aten.linear.default and len(graphs.shape(layer) or ()) == 2):
            continue
        tensors = [layer.args[1], norm.args[3], norm.args[4], *(a for a in (*layer.args[2:3], norm.args[1], norm.args[2]) if a is not None)]
        if all(graphs.attribute(module, t) is not None for t in tensors):
            yield norm


def replace(module: GraphModule, norm: Node) -> bool:
    """Put the norm's scale and shift into the layer's weights."""
    layer: Any = norm.args[0]
    weight = graphs.attribute(module, layer.args[1])
    bias = graphs.attribute(module, layer.args[2]) if len(layer.args) > 2 else None
    gamma, beta, mean, var = (graphs.attribute(module, a) for a in norm.args[1:5])
    assert weight is not None
    assert mean is not None
    assert var is not None
    wide = torch.float64 if weight.dtype == torch.float32 else torch.float32
    scale = torch.rsqrt(var.to(wide) + float(norm.args[7]))
    if gamma is not None:
        scale = scale * gamma.to(wide)
    shift = ((bias.to(wide) if bias is not None else 0) - mean.to(wide)) * scale + (beta.to(wide) if beta is not None else 0)
    if layer.target in _TRANSPOSED:  # weight is (in, out / groups, ...)
        groups = layer.args[6] if len(layer.args) > 6 else 1
        per_group = scale.view(groups, -1)
        folded = (weight.to(wide).view(groups, -1, *weight.shape[1:]) * per_group.view(groups, 1, -1, *[1] * (weight.ndim - 2))).view(weight.shape)
    else:
        folded = weight.to(wide) * scale.view(-1, *[1] * (weight.ndim - 1))
    new_weight = graphs.add_constant(module, layer, folded.to(weight.dtype), "folded_weight")
    new_bias = graphs.add_constant(module, layer, shift.to(weight.dtype), "folded_bias")
    layer.args = (layer.args[0], new_weight, new_bias, *layer.args[3:])
    graphs.replace_all(module, norm, layer)
    return True


REWRITE = Rewrite("NPU501", "fold-batch-norm", N_("Fold batch norm into the convolution or linear layer before it."), match, replace, gain=0.9)
