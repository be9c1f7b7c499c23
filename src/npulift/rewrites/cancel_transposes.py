"""Cancel transposes that undo each other, join those that follow one another, and push one through element-wise operators to meet its inverse.

Applies to transpose and permute with constant axes: two in a row become one (or none), and permute - element-wise operators - inverse permute loses both when the operators between
have one user each and no other tensor operand that is larger than a scalar.
Exact. Pays where layout is changed back and forth around norms and activations (channels-last blocks such as ConvNeXt's, permute - linear - permute).
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
_TURNS = (_aten.permute.default, _aten.transpose.int, _aten.t.default)
_UNARY = {
    _aten.relu.default, _aten.gelu.default, _aten.silu.default, _aten.sigmoid.default, _aten.tanh.default, _aten.hardtanh.default, _aten.hardswish.default,
    _aten.leaky_relu.default, _aten.elu.default, _aten.exp.default, _aten.neg.default, _aten.abs.default, _aten.sqrt.default, _aten.rsqrt.default,
    _aten.clamp.default, _aten.hardsigmoid.default, _aten.mish.default, _aten.softplus.default, _aten.dropout.default,
}
_SCALED = {_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor, _aten.pow.Tensor_Scalar}


def _order(node: Node) -> list[int] | None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    rank = value.ndim
    if node.target is _aten.permute.default:
        return [int(a) % rank for a in node.args[1]]
    order = list(range(rank))
    if node.target is _aten.transpose.int:
        a, b = (int(x) % rank for x in node.args[1:3])
        order[a], order[b] = order[b], order[a]
    elif rank == 2:
        order = [1, 0]
    return order


def match(module: GraphModule) -> Iterator[Node]:
    """Transposes whose source, perhaps through element-wise operators, is a transpose."""
    for node in graphs.calls(module.graph, *_TURNS):
        chain = _chain(node)
        if chain is not None:
            yield node


def _chain(node: Node) -> tuple[Node, list[Node]] | None:
    """(the earlier transpose, the operators between, last first); between them only where the two undo each other."""
    between: list[Node] = []
    source: Any = node.args[0]
    for _step in range(12):
        if not isinstance(source, Node):
            return None
        if source.target in _TURNS:
            first, second = _order(source), _order(node)
            if first is None or second is None:
                return None
            if between and [first[i] for i in second] != list(range(len(first))):
                return None
            return source, between
        elementwise = source.target in _UNARY or (source.target in _SCALED and isinstance(source.args[1], int | float))
        if not elementwise or len(source.users) != 1:
            return None
        between.append(source)
        source = source.args[0]
    return None


def replace(module: GraphModule, node: Node) -> bool:
    """Join or drop the pair."""
    found = _chain(node)
    if found is None:
        return False
    earlier, between = found
    first, second = _order(earlier), _order(node)
    assert first is not None
    assert second is not None
    value: Any = earlier.args[0]
    if between:
        for old in reversed(between):
            value = graphs.call(module, node, old.target, value, *old.args[1:], **old.kwargs)
    else:
        order = [first[i] for i in second]
        if order != list(range(len(order))):
            value = graphs.call(module, node, _aten.permute.default, value, order)
    if any(u.op == "output" for u in node.users) and value.op == "placeholder":
        return False
    graphs.replace_all(module, node, value)
    return True


REWRITE = Rewrite("NPU514", "cancel-transposes", N_("Cancel transposes that undo each other and join those that follow one another."), match, replace, gain=1.0)
