"""Merge operators that compute the same thing from the same inputs (common subexpressions).

Applies to operators without side effects and randomness that have the same target and the same arguments; sub-graphs merge from their inputs on.
Exact. Pays where a model computes a mask or a table in every layer.
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
    """Every operator that an earlier one makes superfluous."""
    for node, _first in _pairs(module):
        yield node


def _pairs(module: GraphModule) -> Iterator[tuple[Node, Node]]:
    seen: dict[Any, Node] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            key: Any = ("get_attr", str(node.target))
        elif node.op == "call_function" and _pure(node.target):
            key = (node.target, _key(node.args), _key(node.kwargs))
        else:
            continue
        first = seen.setdefault(key, node)
        if first is not node:
            yield node, first


def _pure(target: Any) -> bool:
    if target is graphs.GETITEM:
        return True
    return isinstance(target, torch._ops.OpOverload) and not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags and bool(target._schema.returns)


def _key(value: Any) -> Any:
    if isinstance(value, Node):
        return ("node", value.name)
    if isinstance(value, list | tuple):
        return tuple(_key(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, _key(v)) for k, v in sorted(value.items()))
    return (type(value).__name__, repr(value))  # 1, 1.0 and True are different arguments


def replace(module: GraphModule, node: Node) -> bool:
    """Let users take the first of its kind."""
    for duplicate, first in _pairs(module):
        if duplicate is node:
            graphs.replace_all(module, node, first)
            return True
    return False


REWRITE = Rewrite("NPU504", "merge-duplicates", N_("Merge operators that compute the same thing from the same inputs."), match, replace, gain=1.0)
