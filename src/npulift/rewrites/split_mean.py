"""Take a mean over several axes one axis after another.

Applies to a mean over two or more axes whose product is 65,536 or more. Exact but for rounding: every slice has the same number of elements.
Pays where a reduction has a limit on the product of its axes (Ethos-U55 in executorch of early 2026; ask the installed compiler: version 1.5.1 takes it whole).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from npulift import graphs
from npulift.messages import N_
from npulift.rewriting import Rewrite

_aten = torch.ops.aten
PRODUCT = 65_536


def match(module: GraphModule) -> Iterator[Node]:
    """Means over large products of axes."""
    for node in graphs.calls(module.graph, _aten.mean.dim):
        axes: Any = node.args[1]
        shape: Any = graphs.shape(node.args[0])
        if isinstance(axes, list | tuple) and len(axes) > 1 and shape is not None and not node.kwargs.get("dtype"):
            sizes = [shape[a] for a in axes]
            if all(isinstance(s, int) for s in sizes) and math.prod(sizes) >= PRODUCT:
                yield node


def replace(module: GraphModule, node: Node) -> bool:
    """Put one mean an axis, last axis first."""
    axes: Any = node.args[1]
    rank = len(graphs.shape(node.args[0]) or ())
    keep = bool(len(node.args) > 2 and node.args[2])
    value: Any = node.args[0]
    for axis in sorted((a % rank for a in axes), reverse=True):
        value = graphs.call(module, node, _aten.mean.dim, value, [axis], keep)
    graphs.replace_all(module, node, value)
    return True


REWRITE = Rewrite("NPU516", "split-mean", N_("Take a mean over several axes one axis after another."), match, replace, families=("ethos-u", "rknn", "ascend"), gain=0.1)
