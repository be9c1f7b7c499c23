"""Remove operators that change nothing: dropout outside training, clones, casts to the same dtype, reshapes to the same shape, and kin.

Applies to dropout with train=False; clone, contiguous, detach, alias and lift of any value; to, _to_copy and type conversions that keep dtype and device;
view, reshape, expand, flatten, squeeze and unsqueeze that keep the shape; permutations in the old order; whole slices; adding 0 and multiplying by 1 without
a change of dtype or shape; assertions about tensors that export leaves behind. Tensors that are written to in place are left alone.
Exact. Pays where a compiler keeps them as nodes (ONNX exporters and edge compilers often do).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from npulift import graphs
from npulift.messages import N_
from npulift.rewriting import Rewrite

_aten = torch.ops.aten
_ALWAYS = {_aten.clone.default, _aten.contiguous.default, _aten.detach.default, _aten.detach_.default, _aten.alias.default, _aten.lift_fresh_copy.default}
_CASTS = {_aten.to.dtype, _aten.to.dtype_layout, _aten.to.device, _aten._to_copy.default, _aten.type_as.default}
_SHAPES = {
    _aten.view.default, _aten.reshape.default, _aten._unsafe_view.default, _aten.expand.default, _aten.flatten.using_ints, _aten.squeeze.dim, _aten.squeeze.default,
    _aten.squeeze.dims, _aten.unflatten.int, _aten.broadcast_to.default, _aten.expand_as.default, _aten.view_as.default,
}
_DROPOUT = {_aten.dropout.default, _aten.feature_dropout.default, _aten.alpha_dropout.default, _aten.native_dropout.default}


def match(module: GraphModule) -> Iterator[Node]:
    """Calls that return their first argument unchanged, and assertions."""
    for node in graphs.calls(module.graph):
        if node.target is _aten._assert_tensor_metadata.default or (node.args and isinstance(node.args[0], Node) and _same(node)):
            yield node


def _same(node: Node) -> bool:
    source: Any = node.args[0]
    target: Any = node.target
    if target in _DROPOUT:
        return target is not _aten.native_dropout.default and len(node.args) > 2 and node.args[2] is False
    before, after = source.meta.get("val"), node.meta.get("val")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    if before.dtype != after.dtype or before.device != after.device or before.ndim != after.ndim:
        return False
    if target in _ALWAYS:
        return True
    if any(_differs(a, b) for a, b in zip(before.shape, after.shape, strict=True)):
        return False
    if target in _CASTS or target in _SHAPES:
        return True
    if target is _aten.permute.default:
        return list(node.args[1]) == list(range(before.ndim))
    if target is _aten.slice.Tensor:
        return _whole(node, before)
    if target in (_aten.add.Tensor, _aten.sub.Tensor):
        return isinstance(node.args[1], int | float) and node.args[1] == 0 and not node.kwargs
    if target in (_aten.mul.Tensor, _aten.div.Tensor):
        return isinstance(node.args[1], int | float) and node.args[1] == 1
    return False


def _differs(a: Any, b: Any) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a != b
    return str(a) != str(b)  # symbolic sizes: the same expression is the same size


def _whole(node: Node, before: torch.Tensor) -> bool:
    dim, start, end, step = (*node.args[1:], *(0, 0, None, 1)[len(node.args) - 1 :])
    if step != 1 or start not in (0, None):
        return False
    size = before.shape[int(dim)]
    return end is None or (isinstance(end, int) and (end >= 2**62 or (isinstance(size, int) and end >= size)))


def replace(module: GraphModule, node: Node) -> bool:
    """Let users take the argument itself."""
    if node.target is _aten._assert_tensor_metadata.default:
        module.graph.erase_node(node)
        return True
    source = node.args[0]
    assert isinstance(source, Node)
    if any(user.op == "output" for user in node.users) and source.op == "placeholder":
        return False  # an output that is an input would be the caller's own tensor
    graphs.replace_all(module, node, source)
    return True


REWRITE = Rewrite("NPU502", "remove-identity", N_("Remove operators that change nothing: dropout, clones, casts to the same dtype, reshapes to the same shape."), match, replace)
