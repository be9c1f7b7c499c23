"""Recognise attention that is spelled out (matmul, scale, mask, softmax, matmul) as scaled_dot_product_attention.

Applies to softmax(q k^T * s + mask) v over the last two axes, with a scale before or after the product (as factor or divisor, on q, on k, or on the scores), an additive
mask, a cast to float32 around the softmax, dropout outside training, and k given transposed in any way. The scores may have no other user. Changes results by rounding only.
Pays where the target has a fused kernel (Ascend, OpenVINO, PyTorch); compilers that take the parts better get them back when they export.
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
_PRODUCT = (_aten.matmul.default, _aten.bmm.default)
_SOFTMAX = (_aten.softmax.int, _aten._softmax.default)
_CASTS = (_aten.to.dtype, _aten._to_copy.default, _aten.type_as.default)
_PASS = (_aten.dropout.default, _aten.contiguous.default, _aten.clone.default)


@dataclass
class _Found:
    q: Node
    k: Node
    v: Node
    transposed: bool  # k is already (.., d, s): it has to be turned back
    scale: float
    mask: Node | None


def match(module: GraphModule) -> Iterator[Node]:
    """The second product of each."""
    for node in graphs.calls(module.graph, *_PRODUCT):
        if _find(module, node) is not None:
            yield node


def _single(node: Any) -> bool:
    return isinstance(node, Node) and len(node.users) == 1


def _find(module: GraphModule, last: Node) -> _Found | None:
    weights, v = last.args[:2]
    while _single(weights) and weights.target in (*_CASTS, *_PASS):
        if weights.target is _aten.dropout.default and weights.args[2]:
            return None
        weights = weights.args[0]
    if not (_single(weights) and weights.target in _SOFTMAX and isinstance(v, Node)):
        return None
    assert isinstance(weights, Node)
    rank = weights.meta["val"].ndim
    if weights.args[1] not in (-1, rank - 1) or rank < 3:
        return None
    scores, scale, mask = weights.args[0], 1.0, None
    for _step in range(8):
        if not _single(scores):
            return None
        assert isinstance(scores, Node)
        if scores.target in _PRODUCT:
            break
        if scores.target in (*_CASTS, *_PASS):
            scores = scores.args[0]
            continue
        factor = _factor(module, scores)
        if factor is not None:
            scale, scores = scale * factor, scores.args[0]
            continue
        if scores.target is _aten.add.Tensor and mask is None and all(isinstance(a, Node) for a in scores.args[:2]) and not scores.kwargs:
            a, b = scores.args[:2]
            inner = next((x for x in (a, b) if _leads_to_product(module, x)), None)
            if inner is None or scale != 1.0:
                return None
            mask, scores = (b if inner is a else a), inner
            continue
        return None
    else:
        return None
    assert isinstance(scores, Node)
    if scores.target not in _PRODUCT:
        return None
    q, k = scores.args[:2]
    q, more = _scaled(module, q)
    scale *= more
    k, more = _scaled(module, k)
    scale *= more
    if not isinstance(q, Node) or not isinstance(k, Node):
        return None
    key, transposed = _untransposed(k)
    shapes = [graphs.shape(n) for n in (q, key, v)]
    if any(s is None or len(s) != len(shapes[0] or ()) for s in shapes) or len({n.meta["val"].dtype for n in (q, key, v)}) != 1:
        return None
    if mask is not None and (mask.meta["val"].dtype not in (torch.bool, q.meta["val"].dtype)):
        return None
    if list(map(str, shapes[0][:-2])) != list(map(str, shapes[2][:-2])):
        return None
    return _Found(q, key, v, transposed, scale, mask)


def _leads_to_product(module: GraphModule, node: Any) -> bool:
    for _step in range(4):
        if not isinstance(node, Node) or not _single(node):
            return False
        if node.target in _PRODUCT:
            return True
        if node.target in _CASTS or _factor(module, node) is not None:
            node = node.args[0]
            continue
        return False
    return False


def _number(module: GraphModule, value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    tensor = graphs.attribute(module, value)
    return float(tensor) if tensor is not None and tensor.numel() == 1 else None


def _factor(module: GraphModule, node: Node) -> float | None:
    if node.target in (_aten.mul.Tensor, _aten.mul.Scalar):
        return _number(module, node.args[1])
    if node.target in (_aten.div.Tensor, _aten.div.Scalar):
        value = _number(module, node.args[1])
        return 1.0 / value if value else None
    return None


def _scaled(module: GraphModule, node: Any) -> tuple[Any, float]:
    if _single(node) and _factor(module, node) is not None:
        return node.args[0], _factor(module, node) or 1.0
    return node, 1.0


def _untransposed(k: Node) -> tuple[Any, bool]:
    """(k as (.., s, d), False) when k is a transpose of the last two axes, else (k, True)."""
    rank = k.meta["val"].ndim
    if k.target is _aten.transpose.int and {int(a) % rank for a in k.args[1:3]} == {rank - 2, rank - 1}:
        return k.args[0], False
    if k.target is _aten.permute.default and [a % rank for a in k.args[1]] == [*range(rank - 2), rank - 1, rank - 2]:
        return k.args[0], False
    return k, True


def replace(module: GraphModule, node: Node) -> bool:
    """Put one call there."""
    found = _find(module, node)
    if found is None:
        return False
    k = graphs.call(module, node, _aten.transpose.int, found.k, -2, -1) if found.transposed else found.k
    value = graphs.call(module, node, _aten.scaled_dot_product_attention.default, found.q, k, found.v, found.mask, 0.0, False, scale=found.scale)
    before, after = graphs.shape(node), graphs.shape(value)
    if before is None or after is None or list(map(str, before)) != list(map(str, after)):
        module.graph.erase_node(value)
        return False
    graphs.replace_all(module, node, value)
    return True


REWRITE = Rewrite("NPU510", "scattered-attention", N_("Recognise attention that is spelled out as scaled_dot_product_attention."), match, replace, gain=0.4)
