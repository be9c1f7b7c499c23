"""Join casts that follow one another, and reshapes that follow one another.

Applies to a cast whose argument is a cast to a wider or equal type of the same kind (float16 or bfloat16 to float32 and back is nothing; float16 to float32 to float64 is one
step), and to a reshape whose argument is a reshape, view, flatten, unsqueeze or squeeze. Exact: the wider type holds every value of the narrower.
Pays where each is a kernel or breaks a fusion.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from npulift import graphs
from npulift.messages import N_
from npulift.rewrites.operands import CASTS, is_call
from npulift.rewriting import Rewrite

_aten = torch.ops.aten
_RESHAPES = (_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default)
_SHAPED = (*_RESHAPES, _aten.flatten.using_ints, _aten.unflatten.int, _aten.unsqueeze.default, _aten.squeeze.dim, _aten.squeeze.dims)
_HOLDS = {  # what each type holds exactly
    torch.float32: {torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.uint8, torch.int16, torch.bool},
    torch.float64: {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int16, torch.int32, torch.bool},
    torch.int64: {torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool},
    torch.int32: {torch.int8, torch.uint8, torch.int16, torch.int32, torch.bool},
}


def match(module: GraphModule) -> Iterator[Node]:
    """The second of each."""
    for node in graphs.calls(module.graph, *CASTS, *_RESHAPES):
        if _cast(node) or _reshape(node):
            yield node


def _cast(node: Node) -> bool:
    inner: Any = node.args[0] if node.args else None
    if not (is_call(node, *CASTS) and is_call(inner, *CASTS)):
        return False
    first, middle, last = (n.meta.get("val") for n in (inner.args[0], inner, node))
    if not all(isinstance(v, torch.Tensor) for v in (first, middle, last)) or len({v.device for v in (first, middle, last)}) > 1:
        return False
    return first.dtype in _HOLDS.get(middle.dtype, ()) and not (last.dtype == torch.bool and middle.dtype != torch.bool)


def _reshape(node: Node) -> bool:
    if not is_call(node, *_RESHAPES) or not is_call(node.args[0], *_SHAPED) or not all(isinstance(s, int | Node) for s in node.args[1]):  # type: ignore[union-attr]
        return False
    return graphs.is_static(node) or -1 not in node.args[1]  # type: ignore[operator]


def replace(module: GraphModule, node: Node) -> bool:
    """Take the first one's argument."""
    inner: Any = node.args[0]
    source = inner.args[0]
    if _cast(node):
        dtype = node.meta["val"].dtype
        if source.meta["val"].dtype == dtype:
            if source.op == "placeholder" and any(u.op == "output" for u in node.users):
                return False
            value = source
        else:
            value = graphs.call(module, node, _aten.to.dtype, source, dtype)
    elif _reshape(node):
        size: Any = list(graphs.shape(node) or ()) if graphs.is_static(node) else node.args[1]
        value = graphs.call(module, node, _aten.reshape.default, source, size)
    else:
        return False
    graphs.replace_all(module, node, value)
    return True


REWRITE = Rewrite("NPU533", "join-casts", N_("Join casts that follow one another, and reshapes that follow one another."), match, replace, gain=0.8)
