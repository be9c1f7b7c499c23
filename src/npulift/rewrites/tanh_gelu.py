"""Recognise the tanh approximation of GELU that is spelled out (transformers' NewGELUActivation, original GPT-2 and BERT code).

Applies to 0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x^3))) in any order of the factors, with the constants right to 1e-6.
Exact but for rounding: it is F.gelu(x, approximate="tanh") (Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415).
Pays everywhere: nine passes over the activations become one (npu_fast_gelu's kin on Ascend, Gelu in ONNX 20).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from npulift import graphs
from npulift.messages import N_
from npulift.rewrites.operands import ADD, DIV, MUL, factors, is_call, is_number, orders, outermost
from npulift.rewriting import Rewrite

_aten = torch.ops.aten
_POWER = (_aten.pow.Tensor_Scalar,)


def match(module: GraphModule) -> Iterator[Node]:
    """The last product of each."""
    for node in graphs.calls(module.graph, *MUL, *DIV):
        if outermost(module, node) and _source(module, node) is not None:
            yield node


def _source(module: GraphModule, node: Node) -> Node | None:
    constant, parts = factors(module, node)
    if len(parts) != 2 or not math.isclose(constant, 0.5, rel_tol=1e-6):
        return None
    for x, bracket in (parts, parts[::-1]):
        if is_call(bracket, *ADD):
            for tanh, one in orders(bracket):
                if is_number(module, one, 1.0) and is_call(tanh, _aten.tanh.default) and _inner(module, tanh.args[0], x):
                    return x
    return None


def _inner(module: GraphModule, node: Any, x: Node) -> bool:
    """sqrt(2/pi) * (x + 0.044715 x^3), or sqrt(2/pi) * x * (1 + 0.044715 x^2)."""
    constant, parts = factors(module, node)
    if not math.isclose(constant, math.sqrt(2 / math.pi), rel_tol=1e-6):
        return False
    if len(parts) == 1 and is_call(parts[0], *ADD):
        return any(a is x and _power(module, b, x, 3) for a, b in orders(parts[0]))
    if len(parts) == 2 and x in parts:
        other = parts[0] if parts[1] is x else parts[1]
        return is_call(other, *ADD) and any(is_number(module, one, 1.0) and _power(module, b, x, 2) for one, b in orders(other))
    return False


def _power(module: GraphModule, node: Any, x: Node, exponent: int) -> bool:
    constant, parts = factors(module, node)
    if not math.isclose(constant, 0.044715, rel_tol=1e-6):
        return False
    total = 0.0
    for part in parts:
        if part is x:
            total += 1
        elif is_call(part, *_POWER) and part.args[0] is x and isinstance(part.args[1], int | float):
            total += part.args[1]
        elif is_call(part, _aten.square.default) and part.args[0] is x:
            total += 2
        else:
            return False
    return total == exponent


def replace(module: GraphModule, node: Node) -> bool:
    """Put a gelu there."""
    x = _source(module, node)
    if x is None:
        return False
    graphs.replace_all(module, node, graphs.call(module, node, _aten.gelu.default, x, approximate="tanh"))
    return True


REWRITE = Rewrite("NPU508", "tanh-gelu", N_("Recognise the tanh approximation of GELU that is spelled out."), match, replace, gain=0.7)
