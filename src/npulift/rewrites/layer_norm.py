"""Recognise layer norm that is spelled out: (x - mean) / sqrt(var + eps), times a weight, plus a bias.

Applies to the mean over the last axis with keepdim, the variance as mean of (x - mean)^2 or as var without Bessel's correction, division by sqrt or product with rsqrt, and then
an optional constant weight and bias of the last axis. Changes results by rounding only (Ba 2016, https://arxiv.org/abs/1607.06450).
Pays where the target has a fused kernel, which is everywhere; also keeps float16 from overflowing in the square.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from npulift import graphs
from npulift.messages import N_
from npulift.rewrites.operands import ADD, DIV, MUL, SUB, is_call, number, orders, plain, single
from npulift.rewriting import Rewrite

_aten = torch.ops.aten


@dataclass
class _Found:
    x: Node
    eps: float
    weight: Node | None = None
    bias: Node | None = None


def match(module: GraphModule) -> Iterator[Node]:
    """The last operator of each: the sum with the bias where there is one."""
    for node in graphs.calls(module.graph, *ADD, *MUL, *DIV):
        if _find(module, node) is not None and not _goes_on(module, node):
            yield node


def _goes_on(module: GraphModule, node: Node) -> bool:
    if not single(node):
        return False
    (user,) = node.users
    return is_call(user, *ADD, *MUL) and _find(module, user) is not None


def _find(module: GraphModule, node: Node) -> _Found | None:
    found = _core(module, node)
    if found is not None:
        return found
    for inner, constant in orders(node):
        tensor = graphs.attribute(module, constant)
        if tensor is None or not single(inner):
            continue
        below = _find(module, inner) if is_call(inner, *MUL, *DIV) else None
        shape = graphs.shape(node)
        if below is None or shape is None or tuple(tensor.shape) != (shape[-1],) or tensor.dtype != below.x.meta["val"].dtype:
            continue
        if node.target in MUL and below.weight is None and below.bias is None:
            return _Found(below.x, below.eps, constant)
        if node.target in ADD and below.bias is None:
            return _Found(below.x, below.eps, below.weight, constant)
    return None


def _core(module: GraphModule, node: Node) -> _Found | None:
    pairs: list[tuple[Any, Any]] = []
    if node.target in DIV and len(node.args) == 2 and not node.kwargs:
        pairs = [(node.args[0], node.args[1])]
    elif node.target in MUL:
        pairs = list(orders(node))
    for numerator, deviation in pairs:
        centred, weight = numerator, None
        if is_call(numerator, *MUL) and single(numerator):  # the weight may come before the division
            for inner, constant in orders(numerator):
                tensor, shape = graphs.attribute(module, constant), graphs.shape(node)
                if tensor is not None and shape is not None and tuple(tensor.shape) == (shape[-1],) and tensor.dtype == node.meta["val"].dtype:
                    centred, weight = inner, constant
        wanted = _aten.sqrt.default if node.target in DIV else _aten.rsqrt.default
        if not (is_call(centred, *SUB) and plain(centred) and is_call(deviation, wanted) and is_call(deviation.args[0], *ADD) and plain(deviation.args[0])):
            continue
        x, mean = centred.args
        if not isinstance(x, Node) or not _last_mean(mean, x):
            continue
        for variance, eps in orders(deviation.args[0]):
            value = number(module, eps)
            if value is not None and _variance(variance, x, mean):
                return _Found(x, value, weight)
    return None


def _last_mean(node: Any, of: Any) -> bool:
    if not is_call(node, _aten.mean.dim) or len(node.args) < 3 or not node.args[2] or node.kwargs or node.args[0] is not of:
        return False
    axes = node.args[1] if isinstance(node.args[1], list | tuple) else [node.args[1]]
    rank = of.meta["val"].ndim
    return [a % rank for a in axes] == [rank - 1]


def _variance(node: Any, x: Node, mean: Any) -> bool:
    if is_call(node, _aten.mean.dim):
        square: Any = node.args[0]
        if not _last_mean(node, square):
            return False
        centred = square.args[0] if (is_call(square, _aten.pow.Tensor_Scalar) and square.args[1] == 2) or is_call(square, _aten.square.default) else None
        if is_call(square, *MUL) and square.args[0] is square.args[1]:
            centred = square.args[0]
        return is_call(centred, *SUB) and plain(centred) and centred.args[0] is x and (centred.args[1] is mean or _last_mean(centred.args[1], x))
    if is_call(node, _aten.var.dim, _aten.var.correction) and node.args[0] is x:
        axes = node.args[1] if isinstance(node.args[1], list | tuple) else [node.args[1]]
        rank = x.meta["val"].ndim
        given = dict(zip(("unbiased", "keepdim"), node.args[2:], strict=False)) if node.target is _aten.var.dim else {}
        correction = int(given.get("unbiased", True)) if node.target is _aten.var.dim else node.kwargs.get("correction", 1)
        return [a % rank for a in axes] == [rank - 1] and correction == 0 and bool(node.kwargs.get("keepdim", given.get("keepdim", False)))
    return False


def replace(module: GraphModule, node: Node) -> bool:
    """Put one layer_norm there."""
    found = _find(module, node)
    shape = graphs.shape(node)
    if found is None or shape is None or not isinstance(shape[-1], int) or found.x.meta["val"].dtype != node.meta["val"].dtype:
        return False
    value = graphs.call(module, node, _aten.layer_norm.default, found.x, [shape[-1]], found.weight, found.bias, found.eps)
    graphs.replace_all(module, node, value)
    return True


REWRITE = Rewrite("NPU530", "layer-norm", N_("Recognise layer norm that is spelled out."), match, replace, gain=0.6)
