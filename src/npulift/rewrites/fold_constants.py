"""Compute once what depends on parameters and constants alone: resized position embeddings, masks, anchors, rotary tables, arange.

Applies to any operator without side effects and randomness whose inputs are all parameters, buffers or such results, when the result is not larger
than 64 MB and not more than 4 times its inputs (an expanded mask would swell the model otherwise).
Exact: the same operator computes the same values, once, on the CPU.
Pays wherever the sub-graph would run at every call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from npulift import graphs
from npulift.messages import N_
from npulift.rewriting import Rewrite

LIMIT = 64 * 2**20
SWELL = 4
_aten = torch.ops.aten
# Views are left to be folded with what uses them; alone they cost nothing, and folding them would copy the weight.
_WEIGHT_VIEWS = {_aten.t.default, _aten.transpose.int, _aten.permute.default, _aten.view.default, _aten.unsqueeze.default, _aten.expand.default, _aten.reshape.default}


def match(module: GraphModule) -> Iterator[Node]:
    """The last operators of constant sub-graphs."""
    constant: set[Node] = set()
    written = graphs.written(module)
    for node in module.graph.nodes:
        if node in written:
            continue
        if (node.op == "get_attr" and graphs.attribute(module, node) is not None) or (node.op == "call_function" and _pure(node) and all(a in constant for a in node.all_input_nodes)):
            constant.add(node)
    for node in module.graph.nodes:
        if node.op != "call_function" or node not in constant or all(u in constant for u in node.users):
            continue
        if _fits(module, node) and _work(node, constant):
            yield node


def _pure(node: Node) -> bool:
    target: Any = node.target
    if target is graphs.GETITEM:
        return True
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    return all(not isinstance(v, torch.SymInt | torch.SymFloat) for v in tree_leaves(node.meta.get("val"))) and isinstance(node.meta.get("val"), torch.Tensor | tuple | list)


def _work(node: Node, constant: set[Node]) -> bool:
    """True when more than views of a weight would be saved."""
    seen, waiting = set(), [node]
    while waiting:
        current = waiting.pop()
        if current in seen or current.op != "call_function":
            continue
        seen.add(current)
        if current.target not in _WEIGHT_VIEWS:
            return True
        waiting += current.all_input_nodes
    return False


def _fits(module: GraphModule, node: Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or any(not isinstance(s, int) for s in value.shape):
        return False
    size = value.numel() * value.element_size()
    return size <= LIMIT and size <= max(SWELL * _inputs(module, node), 2**20)


def _inputs(module: GraphModule, node: Node) -> int:
    total, seen, waiting = 0, set(), [node]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        tensor = graphs.attribute(module, current)
        if tensor is not None:
            total += tensor.numel() * tensor.element_size()
        waiting += current.all_input_nodes
    return total


def replace(module: GraphModule, node: Node) -> bool:
    """Compute the sub-graph and put a constant there."""
    value = _value(module, node, {})
    if not isinstance(value, torch.Tensor):
        return False
    constant = graphs.add_constant(module, node, value.detach().clone(memory_format=torch.contiguous_format), "constant")
    graphs.replace_all(module, node, constant)
    return True


def _value(module: GraphModule, node: Node, known: dict[Node, Any]) -> Any:
    if node not in known:
        tensor = graphs.attribute(module, node)
        if tensor is not None:
            known[node] = tensor
        else:
            for needed in node.all_input_nodes:
                _value(module, needed, known)
            args = torch.fx.node.map_arg(node.args, lambda n: known[n])
            kwargs = torch.fx.node.map_arg(node.kwargs, lambda n: known[n])
            with torch.no_grad():
                known[node] = node.target(*args, **kwargs)
    return known[node]


REWRITE = Rewrite("NPU503", "fold-constants", N_("Compute once what depends on parameters and constants alone."), match, replace, gain=1.0)
