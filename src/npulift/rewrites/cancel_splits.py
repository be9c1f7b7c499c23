"""Cancel a concatenation of everything that a split, chunk or unbind took apart, and the other way round.

Applies to cat of all parts in their order along the axis of the split; stack of all parts of unbind; and split of a cat along the same axis into the same sizes.
Exact. Pays where slices and concatenations are copies (edge NPUs), and in code that is built from modules that pass tuples.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from npulift import graphs
from npulift.messages import N_
from npulift.rewrites.operands import is_call
from npulift.rewriting import Rewrite

_aten = torch.ops.aten
_SPLITS = (_aten.split.Tensor, _aten.split_with_sizes.default, _aten.chunk.default)


def match(module: GraphModule) -> Iterator[Node]:
    """Concatenations of a whole split, and parts of a split of a concatenation."""
    for node in graphs.calls(module.graph, _aten.cat.default, _aten.stack.default, graphs.GETITEM):
        if _source(node) is not None:
            yield node


def _axis(node: Node, position: int, rank: int) -> int:
    value: Any = node.args[position] if len(node.args) > position else node.kwargs.get("dim", 0)
    return int(value) % rank


def _source(node: Node) -> Node | None:
    if node.target is graphs.GETITEM:
        return _part(node)
    parts: Any = node.args[0]
    if not parts or not all(is_call(p, graphs.GETITEM) for p in parts):
        return None
    cut: Any = parts[0].args[0]
    wanted = (_aten.unbind.int,) if node.target is _aten.stack.default else _SPLITS
    if not is_call(cut, *wanted) or [p.args[0] for p in parts] != [cut] * len(parts) or [p.args[1] for p in parts] != list(range(len(cut.meta["val"]))):
        return None
    source: Any = cut.args[0]
    rank = source.meta["val"].ndim
    axis = _axis(cut, 1, rank) if cut.target is _aten.unbind.int else _axis(cut, 2, rank)
    return source if _axis(node, 1, rank) == axis else None


def _part(node: Node) -> Node | None:
    """The piece of the concatenation that this part of its split is."""
    cut: Any = node.args[0]
    if not is_call(cut, *_SPLITS) or not is_call(cut.args[0], _aten.cat.default):
        return None
    joined: Any = cut.args[0]
    rank = joined.meta["val"].ndim
    axis = _axis(cut, 2, rank)
    if _axis(joined, 1, rank) != axis:
        return None
    before = [graphs.shape(p) for p in joined.args[0]]
    sizes = [s[axis] for s in before if s is not None and len(s) == rank]
    after = [v.shape[axis] for v in cut.meta["val"]]
    if len(sizes) != len(before) or not all(isinstance(s, int) for s in (*sizes, *after)) or sizes != after:
        return None
    piece: Any = joined.args[0][node.args[1]]
    return piece if piece.meta["val"].dtype == node.meta["val"].dtype else None


def replace(module: GraphModule, node: Node) -> bool:
    """Let users take what was there before."""
    source = _source(node)
    if source is None or (source.op == "placeholder" and any(u.op == "output" for u in node.users)):
        return False
    graphs.replace_all(module, node, source)
    return True


REWRITE = Rewrite("NPU532", "cancel-splits", N_("Cancel a concatenation of everything that a split took apart, and a split of a concatenation."), match, replace, gain=1.0)
