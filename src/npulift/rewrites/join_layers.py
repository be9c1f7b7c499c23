"""Join two linear layers, or two 1x1 convolutions, that follow one another without anything between.

Applies when the weights are constants, the first result has no other user, and the joined weight is not larger than the two (a bottleneck is left as it is).
Changes results by rounding only: w = w2 w1, b = w2 b1 + b2.
Pays everywhere: one product instead of two. Models have such pairs after dropout and identities are gone, and around adapters (LoRA) that were never merged.
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
    """The second layer of each pair."""
    for node in graphs.calls(module.graph, _aten.linear.default, _aten.conv2d.default):
        first: Any = node.args[0]
        if not single(first) or first.target is not node.target or not (_plain(module, node) and _plain(module, first)):
            continue
        outer, inner = graphs.attribute(module, node.args[1]), graphs.attribute(module, first.args[1])
        assert outer is not None
        assert inner is not None
        if outer.dtype == inner.dtype and outer.shape[0] * inner.shape[1] <= outer.numel() + inner.numel():
            yield node


def _plain(module: GraphModule, node: Node) -> bool:
    """Constant weights; for a convolution also 1x1, stride 1, no padding, one group."""
    if any(graphs.attribute(module, a) is None for a in node.args[1:3] if a is not None):
        return False
    if is_call(node, _aten.linear.default):
        return True
    weight = graphs.attribute(module, node.args[1])
    assert weight is not None
    stride, padding, _dilation, groups = (*node.args[3:], *(1, 0, 1, 1)[len(node.args) - 3 if len(node.args) > 3 else 0 :])
    def all_are(value: Any, wanted: int) -> bool:
        return all(v == wanted for v in value) if isinstance(value, list | tuple) else bool(value == wanted)

    return tuple(weight.shape[2:]) == (1, 1) and all_are(stride, 1) and all_are(padding, 0) and all_are(groups, 1)


def replace(module: GraphModule, node: Node) -> bool:
    """Multiply the weights."""
    first: Any = node.args[0]
    outer, inner = graphs.attribute(module, node.args[1]), graphs.attribute(module, first.args[1])
    assert outer is not None
    assert inner is not None
    biases = [graphs.attribute(module, n.args[2]) if len(n.args) > 2 else None for n in (node, first)]
    flat = outer.double().flatten(1)
    weight = (flat @ inner.double().flatten(1)).to(outer.dtype).view(outer.shape[0], inner.shape[1], *outer.shape[2:])
    joined = graphs.add_constant(module, node, weight, "joined_weight")
    bias = None
    if any(b is not None for b in biases):
        total = (biases[0].double() if biases[0] is not None else 0) + (flat @ biases[1].double() if biases[1] is not None else 0)
        bias = graphs.add_constant(module, node, total.to(outer.dtype), "joined_bias")  # type: ignore[union-attr]
    graphs.replace_all(module, node, graphs.call(module, node, node.target, first.args[0], joined, bias))
    return True


REWRITE = Rewrite("NPU529", "join-layers", N_("Join two linear layers, or two 1x1 convolutions, that follow one another."), match, replace, gain=0.5)
