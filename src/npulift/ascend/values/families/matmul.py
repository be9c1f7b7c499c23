"""Products: matmul_backward, products with another output dtype, npu_linear, npu_bmmV2, grouped products.

Sources: schemas of torch 2.13 and torch_npu 2.13; documentation of torch_npu.npu_bmmV2, npu_linear and npu_grouped_matmul.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from npulift.ascend.values.gradient import gradients
from npulift.ascend.values.registry import gives

Tensor = torch.Tensor


@gives("aten::matmul_backward")
def matmul_backward(grad: Tensor, input: Tensor, other: Tensor, mask: list[bool]) -> tuple[Any, ...]:
    """Gradients of torch.matmul, each only where the mask asks for it."""
    found = gradients(torch.matmul, (input, other), (grad,))
    return tuple(g if wanted else None for g, wanted in zip(found, mask, strict=True))


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


@gives("aten::mm.dtype", "aten::bmm.dtype")
def mm_dtype(input: Tensor, mat2: Tensor, out_dtype: torch.dtype) -> Tensor:
    """Products are added up in float32 and rounded once, to out_dtype."""
    return (_wide(input) @ _wide(mat2)).to(out_dtype)


@gives("aten::mm.dtype_out", "aten::bmm.dtype_out")
def mm_dtype_out(input: Tensor, mat2: Tensor, out_dtype: torch.dtype, *, out: Tensor) -> Tensor:
    """The same into a tensor."""
    return out.copy_(mm_dtype(input, mat2, out_dtype))


@gives("aten::addmm.dtype", "aten::baddbmm.dtype")
def addmm_dtype(input: Tensor, mat1: Tensor, mat2: Tensor, out_dtype: torch.dtype, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * mat1 @ mat2 in float32, rounded once."""
    return (beta * _wide(input) + alpha * (_wide(mat1) @ _wide(mat2))).to(out_dtype)


@gives("aten::addmm.dtype_out", "aten::baddbmm.dtype_out")
def addmm_dtype_out(input: Tensor, mat1: Tensor, mat2: Tensor, out_dtype: torch.dtype, *, beta: float = 1, alpha: float = 1, out: Tensor) -> Tensor:
    """The same into a tensor."""
    return out.copy_(addmm_dtype(input, mat1, mat2, out_dtype, beta=beta, alpha=alpha))


@gives("npu::npu_linear")
def npu_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input @ weight^T + bias."""
    return functional.linear(input, weight, bias)


@gives("npu::npu_linear_backward")
def npu_linear_backward(grad: Tensor, input: Tensor, weight: Tensor) -> tuple[Any, ...]:
    """Gradients of input and weight."""
    return tuple(gradients(functional.linear, (input, weight), (grad,)))


@gives("npu::npu_bmmV2")
def npu_bmm_v2(input: Tensor, mat2: Tensor, output_sizes: list[int]) -> Tensor:
    """torch.matmul, given the shape output_sizes unless that is empty."""
    found = torch.matmul(input, mat2)
    return found.reshape(output_sizes) if len(output_sizes) else found


@gives("npu::npu_bmm_v2_mat1_backward")
def npu_bmm_v2_mat1_backward(grad: Tensor, mat1: Tensor, mat2: Tensor, size: list[int]) -> Tensor:
    """Gradient of the left factor."""
    shape = torch.broadcast_shapes(mat1.shape[:-2], mat2.shape[:-2])
    found = gradients(torch.matmul, (mat1, mat2), (grad.reshape(*shape, mat1.shape[-2], mat2.shape[-1]),))[0]
    assert found is not None
    return found.reshape(size)


@gives("npu::npu_bmm_v2_mat2_backward")
def npu_bmm_v2_mat2_backward(grad: Tensor, mat1: Tensor, mat2: Tensor, size: list[int]) -> Tensor:
    """Gradient of the right factor."""
    shape = torch.broadcast_shapes(mat1.shape[:-2], mat2.shape[:-2])
    found = gradients(torch.matmul, (mat1, mat2), (grad.reshape(*shape, mat1.shape[-2], mat2.shape[-1]),))[1]
    assert found is not None
    return found.reshape(size)


@gives("npu::npu_grouped_matmul")
def npu_grouped_matmul(
    x: list[Tensor], weight: list[Tensor], *, bias: list[Tensor] | None = None, group_list: Tensor | None = None, split_item: int | None = 0,
    group_type: int | None = None, group_list_type: int | None = 0, output_dtype: int | None = None, **quantised: Any,
) -> list[Tensor]:
    """One product a group: rows of x that group_list gives to each weight (ends, or counts where group_list_type is 1); float dtypes only."""
    if any(v is not None and v != 0 and v != [] for v in quantised.values()):
        raise NotImplementedError("npu_grouped_matmul with quantised arguments")
    weights = [w for big in weight for w in (big.unbind(0) if big.dim() == 3 else [big])]
    if group_list is None:
        outs = [_wide(a) @ _wide(w) for a, w in zip(x, weights, strict=True)]
    else:
        counts = group_list.tolist() if group_list_type == 1 else torch.diff(group_list, prepend=group_list.new_zeros(1)).tolist()
        parts = list(x) if len(x) > 1 else list(x[0][: sum(counts)].split(counts))
        if group_type == 2:  # the common dim is grouped: x^T holds its pieces side by side
            sides = x[0].split(counts, -1)
            return [torch.stack([(_wide(a) @ _wide(w)).to(x[0].dtype) for a, w in zip(sides, weight[0].split(counts, -2), strict=True)])]
        outs = [_wide(a) @ _wide(w) for a, w in zip(parts, weights, strict=True)]
    if bias:
        rows = [b for big in bias for b in (big.unbind(0) if big.dim() == 2 else [big])]
        outs = [o + _wide(b) for o, b in zip(outs, rows, strict=True)]
    outs = [o.to(x[0].dtype) for o in outs]
    return outs if split_item in (0, 1) else [torch.cat(outs)]
