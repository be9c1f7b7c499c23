"""Enlarge to the nearest neighbour by a depthwise transposed convolution with ones.

Applies to upsample_nearest2d by whole factors of at most 8, static sizes. Exact: each pixel times one.
Pays where nearest upsampling stays on the CPU (Ethos-U55 in executorch of early 2026, issue 21585; version 1.5.1 takes it).
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


def match(module: GraphModule) -> Iterator[Node]:
    """Whole-factor nearest upsampling."""
    for node in graphs.calls(module.graph, _aten.upsample_nearest2d):
        before, after = graphs.shape(node.args[0]), graphs.shape(node)
        if before is None or after is None or not (graphs.is_static(node) and graphs.is_static(node.args[0])) or not node.meta["val"].is_floating_point():
            continue
        if all(a % b == 0 and 1 <= a // b <= 8 for b, a in zip(before[2:], after[2:], strict=True)) and before[2:] != after[2:]:
            yield node


def replace(module: GraphModule, node: Node) -> bool:
    """Put a transposed convolution there."""
    before: Any = graphs.shape(node.args[0])
    after: Any = graphs.shape(node)
    factors = [after[2] // before[2], after[3] // before[3]]
    ones = graphs.add_constant(module, node, torch.ones(before[1], 1, *factors, dtype=node.meta["val"].dtype), "ones")
    value = graphs.call(module, node, _aten.conv_transpose2d.input, node.args[0], ones, None, factors, [0, 0], [0, 0], before[1])
    graphs.replace_all(module, node, value)
    return True


REWRITE = Rewrite("NPU524", "nearest-as-transposed-conv", N_("Enlarge to the nearest neighbour by a depthwise transposed convolution with ones."), match, replace,
                  families=("ethos-u", "rknn"), gain=0.1)
