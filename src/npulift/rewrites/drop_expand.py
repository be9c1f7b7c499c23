"""Leave out an expand whose user broadcasts by itself.

Applies to expand, expand_as and broadcast_to that keep the rank, used by element-wise operators whose result has the same size without it. Exact.
Pays where an expand is a copy (Broadcast or Tile on Ascend, Expand in ONNX on edge compilers).
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
_EXPANDS = (_aten.expand.default, _aten.expand_as.default, _aten.broadcast_to.default)
_BROADCASTING = {
    _aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor, _aten.maximum.default, _aten.minimum.default, _aten.where.self, _aten.pow.Tensor_Tensor,
    _aten.eq.Tensor, _aten.ne.Tensor, _aten.lt.Tensor, _aten.le.Tensor, _aten.gt.Tensor, _aten.ge.Tensor, _aten.logical_and.default, _aten.logical_or.default,
    _aten.bitwise_and.Tensor, _aten.bitwise_or.Tensor, _aten.__and__.Tensor, _aten.__or__.Tensor,
}


def match(module: GraphModule) -> Iterator[Node]:
    """Expands whose users all broadcast to the same size without them."""
    for node in graphs.calls(module.graph, *_EXPANDS):
        source: Any = node.args[0]
        if isinstance(source, Node) and node.users and len(graphs.shape(source) or ()) == len(graphs.shape(node) or ()) and all(_broadcasts(u, node) for u in node.users):
            yield node


def _broadcasts(user: Node, node: Node) -> bool:
    """True when another operand of the user has the size of the user's result already."""
    wanted = graphs.shape(user)
    if user.target not in _BROADCASTING or wanted is None:
        return False
    return any(a is not node and list(map(str, graphs.shape(a) or ())) == list(map(str, wanted)) for a in user.all_input_nodes)


def replace(module: GraphModule, node: Node) -> bool:
    """Let users take the argument."""
    source: Any = node.args[0]
    users = list(node.users)
    if not all(_broadcasts(u, node) for u in users):
        return False
    graphs.replace_all(module, node, source)
    for user in users:
        graphs.refresh(user)
    return True


REWRITE = Rewrite("NPU544", "drop-expand", N_("Leave out an expand whose user broadcasts by itself."), match, replace, gain=0.9)
