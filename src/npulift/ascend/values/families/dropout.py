"""Dropout with its mask as bits or bytes, masked softmax, and both together.

A bit mask has one bit an element, the lowest bit first, padded to a multiple of 128 bits. The random numbers are those of the host, not of the card's generator.
Sources: documentation of torch_npu (_npu_dropout, npu_dropout_do_mask, npu_dropout_with_add_softmax, npu_scaled_masked_softmax) and of aclnnDropoutGenMask.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from npulift.ascend.values.registry import gives

Tensor = torch.Tensor
_BITS = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)


def pack(keep: Tensor) -> Tensor:
    """Booleans to bits."""
    flat = keep.reshape(-1).bool()
    padded = torch.zeros(math.ceil(flat.numel() / 128) * 128, dtype=torch.bool)
    padded[: flat.numel()] = flat
    return (padded.view(-1, 8).to(torch.uint8) * _BITS).sum(-1).to(torch.uint8)


def unpack(mask: Tensor, like: Tensor) -> Tensor:
    """Bits to the shape of a tensor, 0 or 1 in its dtype."""
    bits = (mask.reshape(-1, 1).to(torch.uint8) & _BITS) != 0
    return bits.reshape(-1)[: like.numel()].reshape(like.shape).to(like.dtype)


def _scale(x: Tensor, keep: Tensor, p: float) -> Tensor:
    return torch.zeros_like(x) if p >= 1 else (x.float() * keep.float() / (1 - p)).to(x.dtype)


def _draw(shape: Any, p: float) -> Tensor:
    return torch.rand(tuple(shape)) >= p


@gives("npu::_npu_dropout")
def npu_dropout(input: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """(x * keep / (1 - p), the bits)."""
    keep = _draw(input.shape, p)
    return _scale(input, keep, p), pack(keep)


@gives("npu::npu_dropout_backward")
def npu_dropout_backward(grad_output: Tensor, mask: Tensor, p: float) -> Tensor:
    """grad * keep / (1 - p)."""
    return _scale(grad_output, unpack(mask, grad_output), p)


@gives("npu::npu_dropout_do_mask")
def npu_dropout_do_mask(input: Tensor, mask: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """(x * keep / (1 - p), the bits again)."""
    return _scale(input, unpack(mask, input), p), mask.clone()


@gives("npu::_npu_dropout_gen_mask")
def npu_dropout_gen_mask_of(input: Tensor, size: list[int], p: float, seed: int, offset: int, *, parallel: bool | None = True, sync: bool | None = None) -> Tensor:
    """Bits from a seed and an offset; the same ones each time."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + offset) & 0x7FFF_FFFF_FFFF_FFFF)
    return pack(torch.rand(tuple(size), generator=generator) >= p)


@gives("npu::npu_dropout_gen_mask")
def npu_dropout_gen_mask(size: list[int], p: float, **options: Any) -> Tensor:
    """Bits."""
    return pack(_draw(size, p))


@gives("npu::_dropout_with_byte_mask")
def dropout_with_byte_mask(input: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """(x * keep / (1 - p), a byte an element)."""
    keep = _draw(input.shape, p)
    return _scale(input, keep, p), keep.to(torch.uint8)


@gives("npu::_dropout_with_byte_mask_backward")
def dropout_with_byte_mask_backward(grad_output: Tensor, mask: Tensor, p: float) -> Tensor:
    """grad * keep / (1 - p)."""
    return _scale(grad_output, mask.reshape(grad_output.shape), p)


@gives("aten::_masked_scale")
def masked_scale(input: Tensor, mask: Tensor, scale: float) -> Tensor:
    """x * mask * scale."""
    return (input.float() * mask.float() * scale).to(input.dtype)


@gives("npu::npu_dropout_with_add_softmax")
def npu_dropout_with_add_softmax(input: Tensor, x1: Tensor, alpha: float, prob: float, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """(bits, softmax of input * alpha + x1, that after dropout)."""
    soft = torch.softmax(input.float() * alpha + x1.float(), dim)
    keep = _draw(soft.shape, prob)
    return pack(keep), soft.to(input.dtype), _scale(soft, keep, prob).to(input.dtype)


def _softmax_grad(grad: Tensor, soft: Tensor, dim: int) -> Tensor:
    g, y = grad.float(), soft.float()
    return y * (g - (g * y).sum(dim, keepdim=True))


@gives("npu::npu_dropout_with_add_softmax_backward")
def npu_dropout_with_add_softmax_backward(
    grad: Tensor, mask: Tensor, softmax_out: Tensor, alpha: float, prob: float, dim: int,
) -> tuple[Tensor, Tensor]:
    """(gradient of the input, of x1)."""
    found = _softmax_grad(_scale(grad, unpack(mask, grad), prob), softmax_out, dim)
    return (found * alpha).to(grad.dtype), found.to(grad.dtype)


def _hide(x: Tensor, mask: Tensor, triangular: bool) -> Tensor:
    if triangular:
        return torch.ones(x.shape[-2:], dtype=torch.bool).triu(1).expand(x.shape)
    return mask.bool().expand(x.shape)


@gives("npu::npu_scaled_masked_softmax")
def npu_scaled_masked_softmax(x: Tensor, mask: Tensor, scale: float = 1, fixed_triu_mask: bool = False) -> Tensor:
    """softmax of scale * x, -10000 where the mask is True."""
    return torch.softmax((x.float() * scale).masked_fill(_hide(x, mask, fixed_triu_mask), -10000.0), -1).to(x.dtype)


@gives("npu::npu_scaled_masked_softmax_backward")
def npu_scaled_masked_softmax_backward(y_grad: Tensor, y: Tensor, mask: Tensor, scale: float, fixed_triu_mask: bool) -> Tensor:
    """Its gradient, 0 where the mask is True."""
    return (_softmax_grad(y_grad, y, -1) * scale).masked_fill(_hide(y, mask, fixed_triu_mask), 0.0).to(y.dtype)


@gives("npu::npu_masked_softmax_with_rel_pos_bias")
def npu_masked_softmax_with_rel_pos_bias(
    x: Tensor, atten_mask: Tensor | None, relative_pos_bias: Tensor, scale_value: float = 1.0, inner_precision_mode: int = 0,
) -> Tensor:
    """softmax of scale * x + mask + bias; x (B, W, N, S1, S2) or (B * W, N, S1, S2), mask (W, S1, S2), bias (N, S1, S2)."""
    scores = x.float() * scale_value
    if atten_mask is not None:
        mask = atten_mask.float().reshape(-1, 1, *x.shape[-2:])
        by_window = x.dim() == 4 and mask.shape[0] > 1
        scores = (scores.unflatten(0, (-1, mask.shape[0])) + mask).flatten(0, 1) if by_window else scores + mask
    return torch.softmax(scores + relative_pos_bias.float().reshape(-1, *x.shape[-2:]), -1).to(x.dtype)
