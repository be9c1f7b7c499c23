"""Recognise GELU that is spelled out with erf, in any order of the factors.

Applies to 0.5 * x * (1 + erf(x / sqrt(2))) and its permutations, with the constants right to 1e-6.
Exact but for rounding: it is the definition of GELU (Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415).
Pays where the compiler has Gelu but no Erf (Qualcomm HTP puts Erf on the CPU and cuts the graph there), and saves four passes over the activations elsewhere.
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
_MUL, _DIV, _ADD = (_aten.mul.Tensor, _aten.mul.Scalar), (_aten.div.Tensor, _aten.div.Scalar), (_aten.add.Tensor, _aten.add.Scalar)


def match(module: GraphModule) -> Iterator[Node]:
    """The last multiplication of each GELU."""
    for node in graphs.calls(module.graph, *_MUL, *_DIV):
        if _source(module, node) is not None:
            yield node


def _source(module: GraphModule, node: Node) -> Node | None:
    """x, when the product below this node is 0.5 * x * (1 + erf(x / sqrt 2)) and nothing multiplies on."""
    if any(u.target in (*_MUL, *_DIV) and _scalar_factor(module, u, node) is not None for u in node.users) and len(node.users) == 1:
        return None  # a constant factor follows: the larger product is matched, or it is no GELU
    factor, parts = _product(module, node, 1.0, 0)
    if len(parts) != 2 or not math.isclose(factor, 0.5, rel_tol=1e-6):
        return None
    for x, bracket in (parts, parts[::-1]):
        if _is_erf_bracket(module, bracket, x):
            return x
    return None


def _constant(module: GraphModule, value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    tensor = graphs.attribute(module, value)
    return float(tensor) if tensor is not None and tensor.numel() == 1 else None


def _scalar_factor(module: GraphModule, node: Node, of: Node) -> float | None:
    if len(node.args) < 2:
        return None
    a, b = node.args[:2]
    other = b if a is of else a
    value = _constant(module, other)
    if value is None or (node.target in _DIV and (a is not of or value == 0)):
        return None
    return 1 / value if node.target in _DIV else value


def _product(module: GraphModule, node: Any, factor: float, depth: int) -> tuple[float, list[Node]]:
    """(constant factor, other factors) of a product of at most three levels; a factor that others use too is not opened."""
    if not isinstance(node, Node):
        return factor, []
    if depth < 3 and (depth == 0 or len(node.users) == 1) and node.target in (*_MUL, *_DIV) and len(node.args) >= 2:
        for side in node.args[:2]:
            if isinstance(side, Node):
                scalar = _scalar_factor(module, node, side)
                if scalar is not None:
                    return _product(module, side, factor * scalar, depth + 1)
        if node.target in _MUL and all(isinstance(a, Node) for a in node.args[:2]):
            parts: list[Node] = []
            for side in node.args[:2]:
                factor, found = _product(module, side, factor, depth + 1) if not _is_bracket(side) else (factor, [side])
                parts += found
            return factor, parts
    return factor, [node]


def _is_bracket(node: Any) -> bool:
    return isinstance(node, Node) and node.target in _ADD


def _is_erf_bracket(module: GraphModule, bracket: Node, x: Node) -> bool:
    if bracket.target not in _ADD or bracket.kwargs.get("alpha", 1) != 1 or len(bracket.args) < 2:
        return False
    for erf, one in (bracket.args[:2], bracket.args[1::-1]):
        if isinstance(erf, Node) and erf.target is _aten.erf.default and _constant(module, one) == 1.0:
            inner: Any = erf.args[0]
            if isinstance(inner, Node) and inner.target in (*_MUL, *_DIV):
                scalar = _scalar_factor(module, inner, x)
                return scalar is not None and x in inner.args[:2] and math.isclose(scalar, math.sqrt(0.5), rel_tol=1e-6)
    return False


def replace(module: GraphModule, node: Node) -> bool:
    """Put a gelu there."""
    x = _source(module, node)
    if x is None:
        return False
    graphs.replace_all(module, node, graphs.call(module, node, _aten.gelu.default, x))
    return True


REWRITE = Rewrite("NPU505", "erf-gelu", N_("Recognise GELU that is spelled out with erf."), match, replace, gain=0.7)
