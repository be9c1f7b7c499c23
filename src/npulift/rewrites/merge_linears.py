"""Merge linear layers that read the same tensor into one (q, k and v; gate and up).

Applies to two or more linear layers with constant weights and the same input, all with a bias or all without. The result is split again, which is a view.
Exact but for rounding: the rows of the weights, one under the other.
Pays where a larger product uses the matrix unit better and a launch costs (Ascend, CPUs). Compilers that copy for every slice do better apart (see split-qkv), so it is not
offered for qnn and ethos-u.
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
    """The first linear layer of each group."""
    for node in graphs.calls(module.graph, _aten.linear.default):
        group = _group(module, node)
        if len(group) > 1 and group[0] is node:
            yield node


def _group(module: GraphModule, node: Node) -> list[Node]:
    source = node.args[0]
    if not isinstance(source, Node) or not _constant(module, node):
        return []
    together = [n for n in source.users if n.target is _aten.linear.default and n.args[0] is source and _constant(module, n) and _biased(n) == _biased(node)
            and n.meta["val"].dtype == node.meta["val"].dtype]
    return sorted(together)  # in the order of the graph: the merged layer goes where the first of them was


def _biased(node: Node) -> bool:
    return len(node.args) > 2 and node.args[2] is not None


def _constant(module: GraphModule, node: Node) -> bool:
    return all(graphs.attribute(module, a) is not None for a in node.args[1:] if a is not None)


def replace(module: GraphModule, node: Node) -> bool:
    """Put one layer and a split there."""
    group = _group(module, node)
    if len(group) < 2 or group[0] is not node:
        return False
    weights = [graphs.attribute(module, n.args[1]) for n in group]
    merged = graphs.add_constant(module, node, torch.cat([w for w in weights if w is not None]), "merged_weight")
    bias = None
    if _biased(node):
        biases = [graphs.attribute(module, n.args[2]) for n in group]
        bias = graphs.add_constant(module, node, torch.cat([b for b in biases if b is not None]), "merged_bias")
    together = graphs.call(module, node, _aten.linear.default, node.args[0], merged, bias)
    sizes: Any = [int(n.meta["val"].shape[-1]) for n in group]
    parts = graphs.call(module, node, _aten.split_with_sizes.default, together, sizes, -1)
    for index, old in enumerate(group):
        with module.graph.inserting_before(node):
            part = module.graph.call_function(graphs.GETITEM, (parts, index))
        part.meta.update({k: v for k, v in old.meta.items() if k in ("stack_trace", "nn_module_stack", "val")})
        old.replace_all_uses_with(part)
    for old in group:
        module.graph.erase_node(old)
    return True


REWRITE = Rewrite("NPU513", "merge-linears", N_("Merge linear layers that read the same tensor into one."), match, replace,
                  families=("openvino", "onnxruntime", "cpu", "ascend"), gain=0.1)
