"""Compute RMS norm by Ascend's fused operator (npu_rms_norm).

Applies to rms_norm over the last axis with a constant weight of x's dtype, as written with F.rms_norm or found by rms-norm. Changes results by rounding only.
Pays on Ascend: one kernel instead of five passes over the activations. The graph holds npulift::rms_norm, which is the formula on the CPU and npu_rms_norm on the card; that it was
faster on a card has not been tried here, `npulift simulate` predicts it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from npulift import graphs
from npulift.messages import N_
from npulift.rewriting import Rewrite

_aten = torch.ops.aten


def match(module: GraphModule) -> Iterator[Node]:
    """RMS norms with a weight."""
    for node in graphs.calls(module.graph, _aten.rms_norm.default):
        weight = graphs.attribute(module, node.args[2]) if len(node.args) > 2 else None
        if weight is not None and weight.ndim == 1 and len(node.args[1]) == 1 and weight.dtype == node.meta["val"].dtype == node.args[0].meta["val"].dtype:  # type: ignore[arg-type,union-attr]
            yield node


def replace(module: GraphModule, node: Node) -> bool:
    """Put the operator there."""
    eps = node.args[3] if len(node.args) > 3 and node.args[3] is not None else torch.finfo(node.meta["val"].dtype).eps
    graphs.replace_all(module, node, graphs.call(module, node, torch.ops.npulift.rms_norm.default, node.args[0], node.args[2], float(eps)))  # type: ignore[arg-type]
    return True


REWRITE = Rewrite("NPU545", "fused-rms-norm", N_("Compute RMS norm by Ascend's fused operator (npu_rms_norm)."), match, replace, families=("ascend",), gain=0.6)
