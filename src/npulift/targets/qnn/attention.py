"""Attention as MatMul, Softmax, MatMul: whole, or one head at a time, or a block of queries at a time when the compiler cannot lay out the whole.

ONNX's own Attention (opset 23) stays on the CPU (onnxruntime-qnn issue 646). The exporter's own decomposition guards each softmax with IsNaN
and Where, for rows that a mask hides entirely; without a mask there are none, and the chip is spared two operators an attention, which
also cost quantised models a way to float and back.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import GraphModule, Node

from npulift import graphs

_SDPA = torch.ops.aten.scaled_dot_product_attention.default
_A = torch.ops.aten
LOW = -30000.0  # stands for -inf: its exponential is 0 in float32 and float16 alike, and float16 goes no lower than -65504


def decompose_attention(
    program: torch.export.ExportedProgram, *, per_head: bool = False, block: int | None = None,
) -> torch.export.ExportedProgram | None:
    """The program with each attention as MatMul, Softmax, MatMul (by head; by `block` queries); None when that changes nothing.

    Every row of the result is computed from the same keys and values. Cases: four dims, static sizes, no dropout, heads not grouped. Causal
    masks: keys behind a block's last query are not read at all. Masks that depend on no input are computed here, and left out when they
    hide nothing. Masks from inputs: only when split by head or block, and then a row that is masked entirely gives the mean of the
    values, where PyTorch gives zeros; whole, they are left to the exporter.
    """
    module = program.module(check_guards=False)
    assert isinstance(module, GraphModule)
    count = 0
    with torch.no_grad():
        for node in list(graphs.calls(module.graph, _SDPA)):
            count += _decompose(module, node, per_head, block)
        if not count:
            return None
        graphs.tidy(module)
        assert program.example_inputs is not None
        args, kwargs = program.example_inputs
        return torch.export.export(module, args, kwargs, strict=False)


def _decompose(module: GraphModule, node: Node, per_head: bool, block: int | None) -> int:
    named = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), node.args, strict=False)) | dict(node.kwargs)
    query, key, value = named["query"], named["key"], named["value"]
    mask: Any = named.get("attn_mask")
    if not all(graphs.is_static(v) for v in (query, key, value)) or named.get("dropout_p", 0.0) or named.get("enable_gqa"):
        return 0
    q, k = graphs.shape(query), graphs.shape(key)
    if q is None or k is None or len(q) != 4 or len(k) != 4 or k[1] != q[1]:
        return 0
    heads, length, keys = q[1] if per_head else 1, q[2], k[2]
    if mask is not None:
        fixed = fixed_value(module, mask)
        if fixed is not None:
            mask = _bias(fixed)
            if mask is None and not per_head and block is None:
                return 0
            if isinstance(mask, torch.Tensor) and not mask.any():
                mask = None
        elif not per_head and block is None:
            return 0
    if bool(named.get("is_causal", False)):
        mask = torch.zeros(length, keys).masked_fill(~torch.ones(length, keys, dtype=torch.bool).tril(), LOW)
    scale = named.get("scale") or 1.0 / math.sqrt(q[3])
    size = min(block or length, length)

    def call(target: Any, *args: Any) -> Node:
        return graphs.call(module, node, target, *args)

    rows = []
    for head in range(heads):
        qh, kh, vh = (call(_A.slice.Tensor, v, 1, head, head + 1) if heads > 1 else v for v in (query, key, value))
        blocks = []
        for start in range(0, length, size):
            stop = min(start + size, length)
            seen = min(stop, keys) if named.get("is_causal") else keys
            part = call(_A.slice.Tensor, qh, 2, start, stop) if size < length else qh
            ks = call(_A.slice.Tensor, kh, 2, 0, seen) if seen < keys else kh
            vs = call(_A.slice.Tensor, vh, 2, 0, seen) if seen < keys else vh
            scores = call(_A.mul.Tensor, call(_A.matmul.default, part, call(_A.transpose.int, ks, 2, 3)), scale)
            if mask is not None:
                scores = call(_A.add.Tensor, scores, _part(module, node, mask, head if heads > 1 else None, (start, stop, seen)))
            blocks.append(call(_A.matmul.default, call(_A.softmax.int, scores, -1), vs))
        rows.append(call(_A.cat.default, blocks, 2) if len(blocks) > 1 else blocks[0])
    graphs.replace_all(module, node, call(_A.cat.default, rows, 1) if len(rows) > 1 else rows[0])
    return 1


def _bias(mask: torch.Tensor) -> torch.Tensor | None:
    """A fixed mask as what is added to the scores; None when it hides a row entirely (then zeros must come out, which adding cannot do)."""
    hidden = ~mask if mask.dtype == torch.bool else mask <= LOW
    if bool(hidden.all(-1).any()):
        return None
    return torch.zeros(mask.shape).masked_fill(hidden, LOW) if mask.dtype == torch.bool else mask.float().clamp(min=LOW)


def _part(module: GraphModule, node: Node, mask: Node | torch.Tensor, head: int | None, window: tuple[int, int, int]) -> Node:
    """The part of the mask that concerns these scores, as what is added to them."""
    start, stop, seen = window
    shape = tuple(mask.shape) if isinstance(mask, torch.Tensor) else graphs.shape(mask)
    assert shape is not None
    axes = [(len(shape) - 1, 0, seen), (len(shape) - 2, start, stop)]
    if len(shape) == 4 and head is not None:
        axes.append((1, head, head + 1))
    cuts = [(axis, low, high) for axis, low, high in axes if axis >= 0 and shape[axis] > 1 and high - low < shape[axis]]
    if isinstance(mask, torch.Tensor):
        for axis, low, high in cuts:
            mask = mask.narrow(axis, low, high - low)
        return graphs.add_constant(module, node, mask.contiguous(), "mask")
    for axis, low, high in cuts:
        mask = graphs.call(module, node, _A.slice.Tensor, mask, axis, low, high)
    value = mask.meta.get("val")
    if isinstance(value, torch.Tensor) and value.dtype == torch.bool:
        zero, low_value = (graphs.add_constant(module, node, torch.full((), v), "mask") for v in (0.0, LOW))
        return graphs.call(module, node, _A.where.self, mask, zero, low_value)
    return graphs.call(module, node, _A.clamp.default, mask, LOW)


def fixed_value(module: GraphModule, node: Any, limit: int = 2**24) -> torch.Tensor | None:
    """The value of a node that depends on no input, computed; None when it does depend on one or has more than `limit` elements."""
    values: dict[Node, Any] = {}

    def value(n: Node) -> Any:
        if n not in values:
            fake = n.meta.get("val")
            if isinstance(fake, torch.Tensor) and (not graphs.is_static(n) or fake.numel() > limit):
                raise LookupError
            if n.op == "get_attr":
                values[n] = graphs.attribute(module, n)
            elif isinstance(n.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded not in n.target.tags:
                values[n] = n.target(*torch.fx.node.map_arg(n.args, value), **torch.fx.node.map_arg(n.kwargs, value))
            else:
                raise LookupError
        return values[n]

    try:
        with torch.no_grad():
            found = value(node)
    except (LookupError, RuntimeError, TypeError, RecursionError):
        return None
    return found if isinstance(found, torch.Tensor) else None
