"""Read rows by index_select where an index is a constant, instead of advanced indexing.

Applies to x[..., idx] with one constant 1-D int64 index. Exact.
Pays on Qualcomm HTP: advanced indexing is exported as Transpose - GatherND - Transpose, and GatherND returned wrong rows without an error in every case of rank 3 and more that was
tried (onnxruntime-qnn 2.7.0, simulator). index_select becomes Gather, which is right.
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
    """Indexing with one constant vector."""
    for node in graphs.calls(module.graph, _aten.index.Tensor):
        found = _index(module, node)
        if found is not None:
            yield node


def _index(module: GraphModule, node: Node) -> tuple[int, torch.Tensor] | None:
    indices: Any = node.args[1]
    given = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    if len(given) != 1:
        return None
    axis, index = given[0]
    while isinstance(index, Node) and index.target in (_aten.lift_fresh_copy.default, _aten.detach_.default, _aten.detach.default, _aten.clone.default):
        index = index.args[0]
    tensor = graphs.attribute(module, index)
    if tensor is None or tensor.ndim != 1 or tensor.dtype not in (torch.int64, torch.int32) or not tensor.numel():
        return None
    size = (graphs.shape(node.args[0]) or ())[axis]
    return (axis, tensor.to(torch.int64) % size) if isinstance(size, int) else None


def replace(module: GraphModule, node: Node) -> bool:
    """Put an index_select there."""
    found = _index(module, node)
    if found is None:
        return False
    axis, tensor = found
    index = graphs.add_constant(module, node, tensor, "rows")
    graphs.replace_all(module, node, graphs.call(module, node, _aten.index_select.default, node.args[0], axis, index))
    return True


REWRITE = Rewrite("NPU519", "constant-index", N_("Read rows by index_select where an index is a constant, instead of advanced indexing."), match, replace, gain=0.3)
