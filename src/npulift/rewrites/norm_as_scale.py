"""Write a batch norm that follows no layer as one product and one sum by channel.

Applies to batch norm outside training with constant statistics and weights (pre-activation networks, DenseNet, norms on inputs). Exact but for rounding:
y = x * s + t with s = g / sqrt(v + eps) and t = beta - m * s.
Pays where batch norm alone is lowered to five operators (Ethos-U) or is no kernel; what follows may then be folded further by fold-input-scale.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from npulift import graphs
from npulift.messages import N_
from npulift.rewrites import fold_batch_norm
from npulift.rewriting import Rewrite

_aten = torch.ops.aten


def match(module: GraphModule) -> Iterator[Node]:
    """Batch norms that fold-batch-norm cannot take."""
    foldable = set(fold_batch_norm.match(module))
    for node in graphs.calls(module.graph, _aten.batch_norm.default):
        if node not in foldable and not node.args[5] and all(graphs.attribute(module, a) is not None for a in node.args[1:5] if a is not None) and None not in node.args[3:5]:
            yield node


def replace(module: GraphModule, node: Node) -> bool:
    """Put them there."""
    gamma, beta, mean, var = (graphs.attribute(module, a) for a in node.args[1:5])
    assert mean is not None
    assert var is not None
    value = node.meta["val"]
    scale = torch.rsqrt(var.double() + float(node.args[7]))  # type: ignore[arg-type]
    if gamma is not None:
        scale = scale * gamma.double()
    shift = (beta.double() if beta is not None else 0) - mean.double() * scale
    shape = [-1, *[1] * (value.ndim - 2)]
    factor = graphs.add_constant(module, node, scale.view(shape).to(value.dtype), "norm_scale")
    term = graphs.add_constant(module, node, shift.view(shape).to(value.dtype), "norm_shift")
    product = graphs.call(module, node, _aten.mul.Tensor, node.args[0], factor)
    graphs.replace_all(module, node, graphs.call(module, node, _aten.add.Tensor, product, term))
    return True


REWRITE = Rewrite("NPU540", "norm-as-scale", N_("Write a batch norm that follows no layer as one product and one sum by channel."), match, replace, families=("ethos-u", "rknn", "qnn", "ascend"), gain=0.3)
