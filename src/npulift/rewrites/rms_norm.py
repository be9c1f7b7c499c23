"""Recognise RMS norm that is spelled out: x * rsqrt(mean(x^2) + eps) * weight, with or without the casts to float32 around it.

Applies to the form of transformers' Llama, Qwen, Mistral, T5 and kin: pow(2) or x * x, mean over the last axis with keepdim, eps added, rsqrt (or 1 / sqrt), product,
a cast back, and a weight of the last axis. Changes results by rounding only (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467).
Pays where the target has a fused kernel (npu_rms_norm on Ascend; OpenVINO and ONNX fuse the standard form).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from npulift import graphs
from npulift.messages import N_
from npulift.rewriting import Rewrite

_aten = torch.ops.aten
_CASTS = (_aten.to.dtype, _aten._to_copy.default, _aten.type_as.default)


@dataclass
class _Found:
    x: Node
    weight: Node | None
    eps: float


def match(module: GraphModule) -> Iterator[Node]:
    """The last product of each: with the weight where there is one."""
    for node in graphs.calls(module.graph, _aten.mul.Tensor):
        if _find(module, node) is not None:
            yield node


def _uncast(node: Any) -> Any:
    while isinstance(node, Node) and node.target in _CASTS:
        node = node.args[0]
    return node


def _find(module: GraphModule, node: Node) -> _Found | None:
    for a, b in (node.args[:2], node.args[1::-1]):
        weight = graphs.attribute(module, a)
        inner = _uncast(b)
        if weight is not None and isinstance(inner, Node) and len(inner.users) == 1:
            found = _core(module, inner)
            shape = graphs.shape(node)
            if found is not None and shape is not None and weight.ndim == 1 and weight.shape[0] == shape[-1]:
                return _Found(found.x, a, found.eps)
    found = _core(module, node)
    if found is None:
        return None
    users = [u for u in node.users]
    following = users[0] if len(users) == 1 else None
    while following is not None and following.target in _CASTS and len(following.users) == 1:
        following = next(iter(following.users))
    if following is not None and following.target is _aten.mul.Tensor and any(graphs.attribute(module, a) is not None for a in following.args[:2]):
        return None  # the product with the weight is the match
    return found


def _core(module: GraphModule, node: Node) -> _Found | None:
    """x * rsqrt(mean(x^2, -1) + eps) without weight."""
    if node.target is not _aten.mul.Tensor:
        return None
    for x, r in (node.args[:2], node.args[1::-1]):
        if not (isinstance(x, Node) and isinstance(r, Node) and r.target is _aten.rsqrt.default):
            continue
        shifted: Any = r.args[0]
        if not (isinstance(shifted, Node) and shifted.target in (_aten.add.Tensor, _aten.add.Scalar) and isinstance(shifted.args[1], int | float)):
            continue
        mean: Any = shifted.args[0]
        if not (isinstance(mean, Node) and mean.target is _aten.mean.dim and len(mean.args) > 2 and mean.args[2]):
            continue
        rank = x.meta["val"].ndim
        dims = mean.args[1] if isinstance(mean.args[1], list | tuple) else [mean.args[1]]
        if [d % rank for d in dims] != [rank - 1]:
            continue
        square: Any = mean.args[0]
        if not isinstance(square, Node):
            continue
        of: Any = None
        if (square.target is _aten.pow.Tensor_Scalar and square.args[1] == 2) or (square.target is _aten.mul.Tensor and square.args[0] is square.args[1]) or square.target is _aten.square.default:
            of = square.args[0]
        if of is not None and (of is x or _uncast(of) is _uncast(x)):
            return _Found(x, None, float(shifted.args[1]))
    return None


def replace(module: GraphModule, node: Node) -> bool:
    """Put one rms_norm there, in the dtype that the sum was taken in, with the casts of the original around it."""
    found = _find(module, node)
    if found is None:
        return False
    x, dtype = found.x, node.meta["val"].dtype
    size = graphs.shape(x)
    if size is None or not isinstance(size[-1], int):
        return False
    value = graphs.call(module, node, _aten.rms_norm.default, x, [size[-1]], None, found.eps)
    if found.weight is not None:  # the weight multiplies after the cast back, as it did before
        inner = next(a for a in node.args[:2] if a is not found.weight)
        assert isinstance(inner, Node)
        if inner.meta["val"].dtype != value.meta["val"].dtype:
            value = graphs.call(module, node, _aten.to.dtype, value, inner.meta["val"].dtype)
            value = graphs.call(module, node, _aten.mul.Tensor, value, found.weight)
        elif found.weight.meta["val"].dtype == value.meta["val"].dtype:
            value.args = (x, [size[-1]], found.weight, found.eps)
            graphs.refresh(value)
        else:
            value = graphs.call(module, node, _aten.mul.Tensor, value, found.weight)
    if value.meta.get("val") is None or value.meta["val"].dtype != dtype:
        value = graphs.call(module, node, _aten.to.dtype, value, dtype)
    graphs.replace_all(module, node, value)
    return True


REWRITE = Rewrite("NPU511", "rms-norm", N_("Recognise RMS norm that is spelled out."), match, replace, gain=0.6)
