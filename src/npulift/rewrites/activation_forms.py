"""Recognise SiLU, Mish, hard-swish, hard-sigmoid and ReLU6 that are spelled out.

Applies to x * sigmoid(x); x * tanh(softplus(x)); relu6(x + 3) / 6 (or clamp), alone or times x; clamp and hardtanh from 0 to 6; clamp from 0 up.
Exact but for rounding (Ramachandran 2017, Misra 2019, Howard 2019 define them so).
Pays where the compiler has the whole function as one kernel or lookup table, and keeps one quantisation step instead of three.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from npulift import graphs
from npulift.messages import N_
from npulift.rewrites.operands import ADD, DIV, MUL, factors, is_call, is_number, number, orders, outermost
from npulift.rewriting import Rewrite

_aten = torch.ops.aten


def match(module: GraphModule) -> Iterator[Node]:
    """The last operator of each."""
    for node in graphs.calls(module.graph, *MUL, *DIV, _aten.clamp.default, _aten.clamp_min.default, _aten.hardtanh.default):
        if _form(module, node) is not None:
            yield node


def _form(module: GraphModule, node: Node) -> tuple[Any, Node] | None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return None
    if is_call(node, _aten.clamp.default, _aten.clamp_min.default, _aten.hardtanh.default):
        return _clamp(node)
    if not outermost(module, node):
        return None
    constant, parts = factors(module, node)
    found: tuple[Any, Node] | None = None
    if math.isclose(constant, 1.0, rel_tol=1e-9) and len(parts) == 2:
        for x, gate in (parts, parts[::-1]):
            if is_call(gate, _aten.sigmoid.default) and gate.args[0] is x:
                found = _aten.silu.default, x
            elif is_call(gate, _aten.hardsigmoid.default) and gate.args[0] is x:
                found = _aten.hardswish.default, x
            elif is_call(gate, _aten.tanh.default) and is_call(gate.args[0], _aten.softplus.default) and gate.args[0].args == (x,) and not gate.args[0].kwargs:
                found = _aten.mish.default, x
    elif math.isclose(constant, 1 / 6, rel_tol=1e-6) and len(parts) in (1, 2):
        for gate in parts:
            of = _shifted(module, gate)
            others = [p for p in parts if p is not gate]
            if of is not None and others in ([], [of]):
                found = (_aten.hardswish.default if others else _aten.hardsigmoid.default), of
    if found is None or found[1].meta["val"].dtype != value.dtype:
        return None
    return found


def _clamp(node: Node) -> tuple[Any, Node] | None:
    low, high = (*node.args[1:], *((None, None) if node.target is not _aten.hardtanh.default else (-1.0, 1.0))[len(node.args) - 1 :])
    low, high = node.kwargs.get("min", low), node.kwargs.get("max", high)
    if not isinstance(low, int | float) or low != 0 or isinstance(low, bool):
        return None
    source: Any = node.args[0]
    if high is None:
        return _aten.relu.default, source
    return (_aten.relu6.default, source) if isinstance(high, int | float) and high == 6 else None


def _shifted(module: GraphModule, gate: Node) -> Node | None:
    """x, for relu6(x + 3)."""
    bounded = is_call(gate, _aten.relu6.default) or (_clamp(gate) is not None and _clamp(gate)[0] is _aten.relu6.default  # type: ignore[index]
                                                     if is_call(gate, _aten.clamp.default, _aten.hardtanh.default) else False)
    if not bounded or not is_call(gate.args[0], *ADD):
        return None
    for x, three in orders(gate.args[0]):  # type: ignore[arg-type]
        if is_number(module, three, 3.0) and isinstance(x, Node) and number(module, x) is None:
            return x
    return None


def replace(module: GraphModule, node: Node) -> bool:
    """Put the function there."""
    found = _form(module, node)
    if found is None:
        return False
    target, x = found
    graphs.replace_all(module, node, graphs.call(module, node, target, x))
    return True


REWRITE = Rewrite("NPU509", "activation-forms", N_("Recognise SiLU, Mish, hard-swish, hard-sigmoid and ReLU6 that are spelled out."), match, replace, gain=0.5)
