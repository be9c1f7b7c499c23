"""Give a resize with constant scale factors its output size instead.

Applies when the input size is static and size / factor is what the size ratio gives, so that the source coordinates stay the same: whole factors, and any factor
with align_corners (which never reads it).
Exact. Pays because compilers take sizes more often than factors (an ONNX Resize by scales must match the output to the last digit: Qualcomm HTP refuses 1.7).
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
_CORNERED = (_aten.upsample_linear1d.vec, _aten.upsample_bilinear2d.vec, _aten.upsample_bicubic2d.vec, _aten.upsample_trilinear3d.vec)
_NEAREST = (_aten.upsample_nearest1d.vec, _aten.upsample_nearest2d.vec, _aten.upsample_nearest3d.vec)


def match(module: GraphModule) -> Iterator[Node]:
    """Resizes by factor whose coordinates a size gives as well."""
    for node in graphs.calls(module.graph, *_CORNERED, *_NEAREST):
        factors: Any = node.args[-1]
        if not factors or not graphs.is_static(node) or not graphs.is_static(node.args[0]):
            continue
        before, after = graphs.shape(node.args[0]), graphs.shape(node)
        assert before is not None
        assert after is not None
        same = all(b == a * f for a, b, f in zip(before[2:], after[2:], factors, strict=True))
        if same or (node.target in _CORNERED and node.args[2] is True):
            yield node


def replace(module: GraphModule, node: Node) -> bool:
    """Name the size and leave the factors out."""
    after = graphs.shape(node)
    assert after is not None
    size = list(after[2:])
    args = (node.args[0], size, node.args[2], None) if node.target in _CORNERED else (node.args[0], size, None)
    node.args = args
    return True


REWRITE = Rewrite("NPU507", "resize-sized", N_("Give a resize with constant scale factors its output size instead."), match, replace, gain=0.05)
