"""Compute in float32 what was computed in float64 only to be cast down.

Applies to operators that produce float64 inside the graph from something narrower (arange, casts, constants), when no output of the model is float64: every float64 value and constant on the
way becomes float32. Not exact: a rotary table differs by 2.3e-4 at 4,096 positions; the error on your inputs is measured before it is kept.
Pays because no NPU has float64: the operators are refused, or run on the AI CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from npulift import graphs
from npulift.messages import N_
from npulift.rewriting import Rewrite


def match(module: GraphModule) -> Iterator[Node]:
    """The first operator that makes a float64, when all of them can go."""
    if any(_wide(n) for n in module.graph.nodes if n.op == "placeholder") or any(_wide(a) for n in module.graph.nodes if n.op == "output" for a in n.all_input_nodes):
        return
    for node in module.graph.nodes:
        if node.op in ("call_function", "get_attr") and _wide(node):
            yield node
            return


def _wide(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.float64


def replace(module: GraphModule, node: Node) -> bool:
    """Narrow every float64 of the graph."""
    for found in list(module.graph.nodes):
        if found.op == "get_attr" and _wide(found):
            tensor = graphs.attribute(module, found)
            assert tensor is not None
            graphs.replace_all(module, found, graphs.add_constant(module, found, tensor.float(), "narrow"))
    for found in module.graph.nodes:
        if found.op == "call_function":
            found.args = torch.fx.node.map_aggregate(found.args, _narrow)
            found.kwargs = torch.fx.node.map_aggregate(found.kwargs, _narrow)
            if isinstance(found.meta.get("val"), torch.Tensor):
                graphs.refresh(found)
    return not any(_wide(n) for n in module.graph.nodes)


def _narrow(value: Any) -> Any:
    return torch.float32 if value is torch.float64 else value


REWRITE = Rewrite("NPU525", "float64-to-float32", N_("Compute in float32 what was computed in float64 only to be cast down."), match, replace, exact=False, gain=0.5)
