"""Give attention its keys and values as they are instead of repeating them for each group of heads (grouped-query attention).

Applies to scaled_dot_product_attention whose k and v are unsqueeze - expand - reshape of fewer heads (transformers' repeat_kv) with static numbers of heads.
Exact: enable_gqa=True repeats the same heads inside the operator.
Pays where the kernel reads each key once for all its heads (npu_fusion_attention on Ascend takes fewer key heads directly); the copies go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from npulift import graphs
from npulift.messages import N_
from npulift.rewrites.operands import is_call
from npulift.rewriting import Rewrite

_aten = torch.ops.aten


def match(module: GraphModule) -> Iterator[Node]:
    """Attention over repeated keys and values."""
    for node in graphs.calls(module.graph, _aten.scaled_dot_product_attention.default):
        if not node.kwargs.get("enable_gqa"):
            k, v = _before(node.args[1]), _before(node.args[2])
            if k is not None and v is not None and (graphs.shape(k) or (0, 0))[1] == (graphs.shape(v) or (0, 1))[1]:
                yield node


def _before(node: Any) -> Node | None:
    """(b, heads, s, d) that repeat_kv made (b, heads * n, s, d) of."""
    after = graphs.shape(node)
    while is_call(node, _aten.contiguous.default, _aten.clone.default):
        node = node.args[0]
    if after is None or len(after) != 4 or not is_call(node, _aten.reshape.default, _aten.view.default):
        return None
    expanded: Any = node.args[0]
    while is_call(expanded, _aten.contiguous.default, _aten.clone.default):
        expanded = expanded.args[0]
    if not is_call(expanded, _aten.expand.default) or len(graphs.shape(expanded) or ()) != 5:
        return None
    inner: Any = expanded.args[0]
    while is_call(inner, _aten.slice.Tensor) and list(map(str, graphs.shape(inner) or ())) == list(map(str, graphs.shape(inner.args[0]) or ())):
        inner = inner.args[0]
    if not is_call(inner, _aten.unsqueeze.default) or inner.args[1] != 2 or len(graphs.shape(inner) or ()) != 5:
        return None
    source: Any = inner.args[0]
    before = graphs.shape(source)
    whole: Any = graphs.shape(expanded)
    if before is None or not isinstance(before[1], int) or not isinstance(after[1], int) or whole[1] != before[1] or after[1] != before[1] * whole[2]:
        return None
    return source if list(map(str, (before[0], *before[2:]))) == list(map(str, (after[0], *after[2:]))) else None


def replace(module: GraphModule, node: Node) -> bool:
    """Name the sources."""
    k, v = _before(node.args[1]), _before(node.args[2])
    if k is None or v is None:
        return False
    kwargs = {**node.kwargs, "enable_gqa": True}
    graphs.replace_all(module, node, graphs.call(module, node, node.target, node.args[0], k, v, *node.args[3:], **kwargs))
    return True


REWRITE = Rewrite("NPU542", "grouped-heads", N_("Give attention its keys and values as they are instead of repeating them for each group of heads."), match, replace,
                  families=("ascend", "cpu"), gain=0.2)
