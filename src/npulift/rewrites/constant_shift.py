"""Shift by a number instead of by a tensor that holds one.

Applies to << and >> whose amount is a constant tensor of one element (or computed from constants). Exact.
Pays on Ascend: a 0-d int64 shift amount runs on the AI CPU and was seen to crash there (507018; triton-ascend issue 472).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from npulift import graphs
from npulift.messages import N_
from npulift.rewriting import Rewrite

_aten = torch.ops.aten
_FORMS = {
    _aten.__rshift__.Tensor: _aten.__rshift__.Scalar, _aten.__lshift__.Tensor: _aten.__lshift__.Scalar,
    _aten.bitwise_right_shift.Tensor: _aten.bitwise_right_shift.Tensor_Scalar, _aten.bitwise_left_shift.Tensor: _aten.bitwise_left_shift.Tensor_Scalar,
}


def match(module: GraphModule) -> Iterator[Node]:
    """Shifts whose amount is known."""
    for node in graphs.calls(module.graph, *_FORMS):
        if _amount(module, node) is not None:
            yield node


def _amount(module: GraphModule, node: Node) -> int | None:
    from npulift.rewrites.fold_constants import _value

    amount = node.args[1]
    if not isinstance(amount, Node) or any(graphs.attribute(module, n) is None for n in _leaves(amount)):
        return None
    value = amount.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        return None
    return int(_value(module, amount, {}))


def _leaves(node: Node) -> list[Node]:
    if node.op != "call_function":
        return [node]
    return [leaf for source in node.all_input_nodes for leaf in _leaves(source)]


def replace(module: GraphModule, node: Node) -> bool:
    """Put the number there."""
    amount = _amount(module, node)
    if amount is None:
        return False
    graphs.replace_all(module, node, graphs.call(module, node, _FORMS[node.target], node.args[0], amount))
    return True


REWRITE = Rewrite("NPU521", "constant-shift", N_("Shift by a number instead of by a tensor that holds one."), match, replace, gain=0.2)
