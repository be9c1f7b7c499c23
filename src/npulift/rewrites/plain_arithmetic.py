"""Use the cheap operator: a product for a small power and for division by a number, sqrt for the power one half, and one rsqrt for 1 / sqrt.

Applies to floating-point pow with exponent 2, 3, 0.5 or -0.5, division by a number that is not 0, and 1 / sqrt(x). Exact but for rounding, and for
the power one half of minus infinity (NaN instead of infinity).
Pays where pow is a slow or missing kernel (float pow on Ethos-U and RKNN, exp and log on HVX) and where int8 has products but no division.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from npulift import graphs
from npulift.messages import N_
from npulift.rewrites.operands import is_call, single
from npulift.rewriting import Rewrite

_aten = torch.ops.aten
_EXPONENTS = (2, 3, 0.5, -0.5)


def match(module: GraphModule) -> Iterator[Node]:
    """Powers, divisions and reciprocals that have a cheaper form."""
    for node in graphs.calls(module.graph, _aten.pow.Tensor_Scalar, _aten.div.Tensor, _aten.div.Scalar, _aten.reciprocal.default):
        value = node.meta.get("val")
        source: Any = node.args[0]
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not isinstance(source, Node) or source.meta["val"].dtype != value.dtype:
            continue
        if node.target is _aten.reciprocal.default:
            if single(source) and is_call(source, _aten.sqrt.default):
                yield node
        elif isinstance(node.args[1], int | float) and not node.kwargs:
            if node.target is _aten.pow.Tensor_Scalar:
                if node.args[1] in _EXPONENTS:
                    yield node
            elif node.args[1] != 0 and abs(1 / node.args[1]) >= torch.finfo(value.dtype).smallest_normal and abs(node.args[1]) != float("inf") and node.args[1] == node.args[1]:
                yield node


def replace(module: GraphModule, node: Node) -> bool:
    """Put it there."""
    x: Any = node.args[0]

    def call(target: Any, *args: Any) -> Node:
        return graphs.call(module, node, target, *args)

    if node.target is _aten.reciprocal.default:
        value = call(_aten.rsqrt.default, x.args[0])
    elif node.target is _aten.pow.Tensor_Scalar:
        exponent: Any = node.args[1]
        if exponent == 0.5:
            value = call(_aten.sqrt.default, x)
        elif exponent == -0.5:
            value = call(_aten.rsqrt.default, x)
        else:
            value = call(_aten.mul.Tensor, x, x)
            if exponent == 3:
                value = call(_aten.mul.Tensor, value, x)
    else:
        value = call(_aten.mul.Tensor, x, 1.0 / node.args[1])  # type: ignore[operator]
    graphs.replace_all(module, node, value)
    return True


REWRITE = Rewrite("NPU539", "plain-arithmetic", N_("Use the cheap operator: products for small powers and for division by a number, rsqrt for 1 / sqrt."), match, replace,
                  families=("ethos-u", "rknn", "qnn"), gain=0.2)
