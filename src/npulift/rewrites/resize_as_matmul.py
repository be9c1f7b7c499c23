"""Resize by two products with constant matrices: linear, bilinear and bicubic interpolation, with or without antialias, any align_corners.

Applies to resizes with static sizes whose two matrices have at most 4 million elements. Interpolation is linear in its input and separable: out = A_h x A_w^T,
where the columns of A are what PyTorch's own operator makes of unit vectors, so every mode and corner rule is PyTorch's.
Exact but for rounding on finite values (an infinity or NaN spreads along its row and column). Costs H_out*H_in*W_in + H_out*W_out*W_in multiply-adds a channel instead of 4 to 16 a pixel, on the matrix unit.
Pays where the resize would run on the CPU and cut the graph (bicubic and antialias on Qualcomm HTP, bilinear on Ethos-U55), and for large scales in one dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from npulift import graphs
from npulift.messages import N_
from npulift.rewriting import Rewrite

LIMIT = 4_000_000
_aten = torch.ops.aten
_PACKETS = (_aten.upsample_linear1d, _aten.upsample_bilinear2d, _aten.upsample_bicubic2d, _aten._upsample_bilinear2d_aa, _aten._upsample_bicubic2d_aa)


def match(module: GraphModule) -> Iterator[Node]:
    """Resizes with static sizes."""
    for node in graphs.calls(module.graph, *_PACKETS):
        if graphs.is_static(node) and graphs.is_static(node.args[0]) and node.meta["val"].is_floating_point():
            before, after = graphs.shape(node.args[0]), graphs.shape(node)
            if before is not None and node.target.overloadpacket in _PACKETS[3:] and 1 in (*before[2:], *(after or ())[2:]):  # type: ignore[union-attr]
                continue  # PyTorch's antialiasing kernel takes such a tensor for channels-last; the user's own values are kept
            if before is not None and after is not None and sum(a * b for a, b in zip(before[2:], after[2:], strict=True)) <= LIMIT and min(*before, *after) > 0:
                yield node


def _matrix(node: Node, axis: int, before: tuple[int, ...], after: tuple[int, ...]) -> torch.Tensor:
    """The out x in matrix of one axis, from the operator itself: the other axis is two equal pixels wide and stays so (one pixel trips the
    antialiasing kernel, which then takes the tensor for channels-last)."""
    size_in, size_out = before[axis], after[axis]
    target: Any = node.target
    unit = torch.eye(size_in, dtype=torch.float64)
    scales = _scales(node, len(before) - 2)
    if len(before) == 3:
        probe, size, scale = unit.unsqueeze(1), [size_out], scales and [scales[0]]
    else:
        shape = (size_in, 1, size_in, 2) if axis == 2 else (size_in, 1, 2, size_in)
        probe = unit.reshape(size_in, 1, size_in, 1).expand(shape) if axis == 2 else unit.reshape(size_in, 1, 1, size_in).expand(shape)
        probe, size = probe.contiguous(), [size_out, 2] if axis == 2 else [2, size_out]
        scale = scales and ([scales[0], 1.0] if axis == 2 else [1.0, scales[1]])
    packet = target.overloadpacket
    # .vec takes either sizes or factors; with factors the source coordinates follow the factor, not the ratio of the sizes.
    result = packet.vec(probe, None if scale else size, _corners(node), scale or None)
    if len(before) == 4:
        result = result[..., 0] if axis == 2 else result[:, :, 0]
    return result.reshape(size_in, size_out).T.contiguous()


def _corners(node: Node) -> bool:
    return bool(node.args[2])


def _scales(node: Node, dims: int) -> list[float] | None:
    if str(node.target).endswith(".vec"):
        factors: Any = node.args[3] if len(node.args) > 3 else node.kwargs.get("scale_factors")
        return list(factors) if factors else None
    given = [s for s in node.args[3 : 3 + dims] if s is not None]
    return [float(s) for s in given] if len(given) == dims else None


def replace(module: GraphModule, node: Node) -> bool:
    """Put two matrix products there (one for one dimension)."""
    source: Any = node.args[0]
    before, after = graphs.shape(source), graphs.shape(node)
    assert before is not None
    assert after is not None
    dtype = node.meta["val"].dtype
    matrices = [_matrix(node, axis, before, after).to(dtype) for axis in range(2, len(before))]
    if any(m.shape != (a, b) for m, a, b in zip(matrices, after[2:], before[2:], strict=True)):
        return False
    value = source
    columns = graphs.add_constant(module, node, matrices[-1].T.contiguous(), "resize_columns")
    value = graphs.call(module, node, _aten.matmul.default, value, columns)
    if len(before) == 4:
        rows = graphs.add_constant(module, node, matrices[0], "resize_rows")
        value = graphs.call(module, node, _aten.matmul.default, rows, value)
    graphs.replace_all(module, node, value)
    return True


REWRITE = Rewrite("NPU506", "resize-as-matmul", N_("Resize by two products with constant matrices, where the chip has no such resize."), match, replace, gain=0.2)
