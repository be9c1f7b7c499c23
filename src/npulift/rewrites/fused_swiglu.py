"""Recognise SwiGLU, silu(gate) * up, and compute it by Ascend's fused operator (npu_swiglu) over one merged product.

Applies when gate and up are two linear layers of the same input with constant weights of equal size, both with a bias or both without, or the two halves of one tensor's last axis.
Changes results by rounding only.
Pays on Ascend: one product instead of two and one kernel instead of two. The graph holds npulift::swiglu, which is the formula on the CPU and npu_swiglu on the card; not tried on a
card here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from npulift import graphs
from npulift.messages import N_
from npulift.rewrites.operands import MUL, is_call, orders, same_shape, single
from npulift.rewriting import Rewrite

_aten = torch.ops.aten
_CUTS = (_aten.chunk.default, _aten.split.Tensor, _aten.split_with_sizes.default)


def match(module: GraphModule) -> Iterator[Node]:
    """The product at the end of each."""
    for node in graphs.calls(module.graph, *MUL):
        if _find(module, node) is not None:
            yield node


def _find(module: GraphModule, node: Node) -> tuple[Node, Node] | None:
    """(gate, up), before the activation."""
    for activated, up in orders(node):
        if not (single(activated) and is_call(activated, _aten.silu.default)):
            continue
        gate: Any = activated.args[0]
        if not isinstance(up, Node) or not same_shape(gate, up) or not single(gate) or not single(up):
            continue
        if is_call(gate, _aten.linear.default) and is_call(up, _aten.linear.default):
            tensors = [a for n in (gate, up) for a in n.args[1:3] if a is not None]
            if gate.args[0] is up.args[0] and all(graphs.attribute(module, t) is not None for t in tensors) and len(gate.args) == len(up.args):
                return gate, up
        if is_call(gate, graphs.GETITEM) and is_call(up, graphs.GETITEM) and gate.args[0] is up.args[0] and is_call(gate.args[0], *_CUTS):
            cut: Any = gate.args[0]
            axis = cut.args[2] if len(cut.args) > 2 else 0
            if (gate.args[1], up.args[1]) == (0, 1) and len(cut.meta["val"]) == 2 and axis in (-1, gate.meta["val"].ndim - 1):
                return gate, up
    return None


def replace(module: GraphModule, node: Node) -> bool:
    """Put the operator there."""
    found = _find(module, node)
    if found is None:
        return False
    gate, up = found
    if is_call(gate, graphs.GETITEM):
        source: Any = gate.args[0].args[0]  # type: ignore[union-attr]
    else:
        parts = [[graphs.attribute(module, n.args[i]) for n in (gate, up)] for i in range(1, len(gate.args))]
        merged = [graphs.add_constant(module, node, torch.cat(p), "gate_up") if p[0] is not None else None for p in parts]  # type: ignore[arg-type]
        source = graphs.call(module, node, _aten.linear.default, gate.args[0], *merged)
    graphs.replace_all(module, node, graphs.call(module, node, torch.ops.npulift.swiglu.default, source))
    return True


REWRITE = Rewrite("NPU547", "fused-swiglu", N_("Compute SwiGLU by Ascend's fused operator (npu_swiglu) over one merged product."), match, replace, families=("ascend",), gain=0.3)
