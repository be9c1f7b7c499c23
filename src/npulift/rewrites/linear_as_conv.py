"""Compute a linear layer on a channels-last view of an image by a 1x1 convolution on the image itself.

Applies to linear(x.permute(0, 2, 3, 1)) with constant weights, when nobody else uses the permuted tensor: it becomes conv2d(x, 1x1) followed by the permutation, which
cancel-transposes then meets with its inverse. Exact but for rounding.
Pays where layout changes are copies and convolutions are the fast path (Ethos-U, RKNN, Qualcomm HTP).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from npulift import graphs
from npulift.messages import N_
from npulift.rewrites.operands import is_call, single
from npulift.rewriting import Rewrite

_aten = torch.ops.aten


def match(module: GraphModule) -> Iterator[Node]:
    """Linear layers right after the permutation."""
    for node in graphs.calls(module.graph, _aten.linear.default):
        turned: Any = node.args[0]
        is_turned = single(turned) and is_call(turned, _aten.permute.default) and len(turned.args[1]) == 4 and [a % 4 for a in turned.args[1]] == [0, 2, 3, 1]
        if is_turned and all(graphs.attribute(module, a) is not None for a in node.args[1:3] if a is not None):
            yield node


def replace(module: GraphModule, node: Node) -> bool:
    """Convolve, then turn."""
    turned: Any = node.args[0]
    weight = graphs.attribute(module, node.args[1])
    assert weight is not None
    kernel = graphs.add_constant(module, node, weight.reshape(*weight.shape, 1, 1).contiguous(), "kernel")
    value = graphs.call(module, node, _aten.conv2d.default, turned.args[0], kernel, node.args[2] if len(node.args) > 2 else None)
    graphs.replace_all(module, node, graphs.call(module, node, _aten.permute.default, value, [0, 2, 3, 1]))
    return True


REWRITE = Rewrite("NPU538", "linear-as-conv", N_("Compute a linear layer on a channels-last view of an image by a 1x1 convolution on the image itself."), match, replace,
                  families=("ethos-u", "rknn", "qnn"), gain=0.2)
