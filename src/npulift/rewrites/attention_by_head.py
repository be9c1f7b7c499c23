"""Compute attention head by head.

Applies to scaled_dot_product_attention of 4-D operands with 2 to 32 heads of static number, equal for q, k and v, outside training. Exact: heads do not mix.
Pays where a compiler runs out of its on-chip memory on the whole (Qualcomm HTP, error 1002; Ethos-U), at the price of more operators.
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
HEADS = 32


def match(module: GraphModule) -> Iterator[Node]:
    """Attention of several heads."""
    for node in graphs.calls(module.graph, _aten.scaled_dot_product_attention.default):
        shapes: list[Any] = [graphs.shape(n) for n in node.args[:3]]
        if any(s is None or len(s) != 4 or not isinstance(s[1], int) for s in shapes) or len({s[1] for s in shapes}) != 1 or not 1 < shapes[0][1] <= HEADS:
            continue
        if not (len(node.args) > 4 and node.args[4]) and not node.kwargs.get("dropout_p"):
            yield node


def replace(module: GraphModule, node: Node) -> bool:
    """One attention a head, and a concatenation."""
    heads = int((graphs.shape(node.args[0]) or (0, 0))[1])
    mask: Any = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
    shape: Any = graphs.shape(mask) if mask is not None else None
    kwargs = {k: v for k, v in node.kwargs.items() if k not in ("attn_mask", "enable_gqa")}
    parts = []
    for head in range(heads):
        q, k, v = (graphs.call(module, node, _aten.slice.Tensor, n, 1, head, head + 1) for n in node.args[:3])
        part = mask
        if shape is not None and len(shape) == 4 and shape[1] == heads:
            part = graphs.call(module, node, _aten.slice.Tensor, mask, 1, head, head + 1)
        elif shape is not None and len(shape) == 3 and shape[0] == heads:
            part = graphs.call(module, node, _aten.slice.Tensor, mask, 0, head, head + 1)
        parts.append(graphs.call(module, node, node.target, q, k, v, part, *node.args[4:6], **kwargs))
    graphs.replace_all(module, node, graphs.call(module, node, _aten.cat.default, parts, 1))
    return True


REWRITE = Rewrite("NPU541", "attention-by-head", N_("Compute attention head by head."), match, replace, families=("qnn", "rknn", "ethos-u"), gain=0.02)
