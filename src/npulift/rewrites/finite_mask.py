"""Mask with the most negative finite number instead of minus infinity.

Applies to masked_fill, where and full with -inf whose result reaches a softmax through additions and casts. Rows that keep something are the same to rounding; a row that is masked
everywhere gives the mean of the values instead of NaN.
Pays in float16 and on fused attention kernels, where -inf minus -inf is NaN and spreads.
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
_MAKERS = {_aten.masked_fill.Scalar: 2, _aten.masked_fill_.Scalar: 2, _aten.full.default: 1, _aten.full_like.default: 1}
_WAY = (_aten.add.Tensor, _aten.unsqueeze.default, _aten.expand.default, _aten.to.dtype, _aten.slice.Tensor, _aten.triu.default, _aten.view.default, _aten.reshape.default,
        _aten.clone.default, _aten.mul.Tensor, _aten.index.Tensor, _aten.select.int, _aten.where.self, _aten.masked_fill.Scalar, _aten._to_copy.default)


def match(module: GraphModule) -> Iterator[Node]:
    """Makers of -inf that feed a softmax."""
    for node in graphs.calls(module.graph, *_MAKERS):
        position = _MAKERS[node.target]
        if len(node.args) > position and node.args[position] == float("-inf") and _softmax_below(node):
            yield node


def _softmax_below(node: Node) -> bool:
    seen: set[Node] = set()
    waiting = list(node.users)
    while waiting:
        user = waiting.pop()
        if user in seen:
            continue
        seen.add(user)
        if user.target in (_aten.softmax.int, _aten._softmax.default, _aten.scaled_dot_product_attention.default):
            return True
        if user.target in _WAY:
            waiting += list(user.users)
    return False


def replace(module: GraphModule, node: Node) -> bool:
    """Put half the most negative number there, so that a sum of two masks does not overflow to -inf again."""
    args: list[Any] = list(node.args)
    args[_MAKERS[node.target]] = torch.finfo(node.meta["val"].dtype).min / 2
    node.args = tuple(args)
    return True


REWRITE = Rewrite("NPU526", "finite-mask", N_("Mask with a large finite negative number instead of minus infinity."), match, replace, gain=0.0)
