"""Split a grouped 3-D convolution into one convolution a group.

Applies to conv3d with constant weights and 1 < groups < channels. Exact but for rounding.
Pays where grouped 3-D convolution is missing (aclnn before CANN 8.1: "Conv3dv2 only supports groups = 1 or groups = cin", EZ1001; Ascend/pytorch issue 85).
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
    """Grouped, but not depthwise, 3-D convolutions."""
    for node in graphs.calls(module.graph, _aten.conv3d.default):
        groups: Any = node.args[6] if len(node.args) > 6 else 1
        weight = graphs.attribute(module, node.args[1])
        if weight is not None and 1 < groups < weight.shape[1] * groups:
            yield node


def replace(module: GraphModule, node: Node) -> bool:
    """One convolution a group, and a concatenation."""
    weight = graphs.attribute(module, node.args[1])
    assert weight is not None
    bias = graphs.attribute(module, node.args[2]) if len(node.args) > 2 else None
    groups = int(node.args[6])
    per_in, per_out = weight.shape[1], weight.shape[0] // groups
    parts = []
    for g in range(groups):
        x = graphs.call(module, node, _aten.slice.Tensor, node.args[0], 1, g * per_in, (g + 1) * per_in)
        w = graphs.add_constant(module, node, weight[g * per_out : (g + 1) * per_out].contiguous(), "group_weight")
        b = graphs.add_constant(module, node, bias[g * per_out : (g + 1) * per_out].contiguous(), "group_bias") if bias is not None else None
        parts.append(graphs.call(module, node, _aten.conv3d.default, x, w, b, *node.args[3:6]))
    graphs.replace_all(module, node, graphs.call(module, node, _aten.cat.default, parts, 1))
    return True


REWRITE = Rewrite("NPU518", "split-grouped-conv", N_("Split a grouped 3-D convolution into one convolution a group."), match, replace, families=("ascend", "ethos-u", "qnn", "rknn"), gain=0.1)
