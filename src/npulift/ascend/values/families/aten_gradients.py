"""Gradients of aten operators that torch_npu gives kernels of its own, and writes into parts of a tensor.

Sources: the operators' own definitions in torch; schemas of torch_npu 2.13; documentation of torch_npu (npu_scatter_nd_update, scatter_update, npu_stride_add).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from npulift.ascend.values.gradient import gradients
from npulift.ascend.values.registry import gives

Tensor = torch.Tensor


def _one(found: list[Tensor | None]) -> Tensor:
    assert found[0] is not None
    return found[0]


@gives("npu::npu_gather_backward")
def npu_gather_backward(grad: Tensor, self_size: list[int], dim: int, index: Tensor, sparse_grad: bool) -> Tensor:
    """What was gathered more than once adds up."""
    return torch.zeros(self_size, dtype=grad.dtype).scatter_add_(dim, index, grad)


@gives("npu::repeat_interleave_backward_int", "npu::repeat_interleave_backward_tensor")
def repeat_interleave_backward(grad: Tensor, input: Tensor, repeats: Any, dim: int | None = None) -> Tensor:
    """The gradients of the repeats of an element add up."""
    return _one(gradients(lambda x: x.repeat_interleave(repeats, dim), (input,), (grad,)))


@gives("npu::npu_renorm_backward")
def npu_renorm_backward(grad: Tensor, input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Gradient of torch.renorm."""
    return _one(gradients(lambda x: torch.renorm(x, p, dim, maxnorm), (input,), (grad,)))


@gives("npu::npu_binary_cross_entropy_with_logits_backward")
def npu_binary_cross_entropy_with_logits_backward(
    grad_output: Tensor, input: Tensor, target: Tensor, weight_opt: Tensor | None, pos_weight_opt: Tensor | None, reduction: int,
) -> Tensor:
    """Gradient of the logits."""
    name = ("none", "mean", "sum")[reduction]
    wide = torch.float64 if input.dtype == torch.float64 else torch.float32
    options = [None if w is None else w.to(wide) for w in (weight_opt, pos_weight_opt)]
    return _one(gradients(lambda x: functional.binary_cross_entropy_with_logits(x, target.to(wide), options[0], pos_weight=options[1], reduction=name),
                          (input,), (grad_output,)))


@gives("npu::fft_r2c_backward")
def fft_r2c_backward(grad: Tensor, dim: list[int], normalization: int, onesided: bool, last_dim_size: int) -> Tensor:
    """Real part of the transform back, of the half spectrum filled with zeros."""
    if onesided:
        last = dim[-1]
        shape = list(grad.shape)
        shape[last] = last_dim_size
        full = torch.zeros(shape, dtype=grad.dtype)
        full.narrow(last, 0, grad.shape[last]).copy_(grad)
        grad = full
    return torch._fft_c2c(grad, dim, normalization, False).real.contiguous()


@gives("npu::fft_c2r_backward")
def fft_c2r_backward(grad: Tensor, dim: list[int], normalization: int) -> Tensor:
    """The half spectrum, whose inner part counts twice."""
    found = torch._fft_r2c(grad, dim, normalization, True)
    twice = grad.shape[dim[-1]] - found.shape[dim[-1]]
    if twice > 0:
        found.narrow(dim[-1], 1, twice).mul_(2)
    return found


@gives("npu::slow_conv_dilated2d_backward")
def slow_conv_dilated2d_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, kernel_size: Any, stride: list[int], padding: list[int], dilation: list[int], output_mask: list[bool],
) -> tuple[Any, ...]:
    """Gradients of a dilated convolution."""
    return tuple(torch.ops.aten.convolution_backward(grad_output, input, weight, [weight.shape[0]] if output_mask[2] else None, stride, padding, dilation, False,
                                                     [0, 0], 1, output_mask))


@gives("npu::slow_conv_transpose2d_backward")
def slow_conv_transpose2d_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, kernel_size: Any, stride: list[int], padding: list[int], output_padding: list[int],
    dilation: list[int], output_mask: list[bool],
) -> tuple[Any, ...]:
    """Gradients of a transposed convolution."""
    return tuple(torch.ops.aten.convolution_backward(grad_output, input, weight, [weight.shape[1]] if output_mask[2] else None, stride, padding, dilation, True,
                                                     output_padding, 1, output_mask))


@gives("npu::one_")
def one_(input: Tensor) -> Tensor:
    """Filled with 1."""
    return input.fill_(1)


@gives("npu::copy_memory_", "npu::npu_view_copy")
def copy_memory_(input: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """copy_."""
    return input.copy_(src)


@gives("npu::_npu_index_add")
def npu_index_add(input: Tensor, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """Rows of source added to the rows of a copy that index names."""
    return input.index_add(0, index.reshape(-1), source, alpha=alpha)


@gives("npu::_npu_index_add_")
def npu_index_add_(input: Tensor, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """In place."""
    return input.index_add_(0, index.reshape(-1), source, alpha=alpha)


@gives("npu::npu_scatter")
def npu_scatter(input: Tensor, indices: Tensor, updates: Tensor, dim: int) -> Tensor:
    """updates written at indices along dim, on a copy."""
    index, values = (t if t.dim() == input.dim() else t.unsqueeze(dim) for t in (indices, updates))
    return input.scatter(dim, index.long(), values)


@gives("npu::npu_scatter_nd_update")
def npu_scatter_nd_update(input: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """updates written at the places that the last dim of indices names, on a copy."""
    return npu_scatter_nd_update_(input.clone(), indices, updates)


@gives("npu::npu_scatter_nd_update_")
def npu_scatter_nd_update_(input: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """In place."""
    return input.index_put_(tuple(indices.long().unbind(-1)), updates)


@gives("npu::scatter_update")
def scatter_update(input: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    """Row b of updates written from position indices[b] along axis on, on a copy (a cache of keys or values)."""
    return scatter_update_(input.clone(), indices, updates, axis)


@gives("npu::scatter_update_")
def scatter_update_(input: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    """In place."""
    for row, start in enumerate(indices.reshape(-1).tolist()):
        along = axis % input.dim() - 1
        input[row].narrow(along, start, updates.shape[axis]).copy_(updates[row])
    return input
