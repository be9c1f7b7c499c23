"""Fused operators that Ascend has and PyTorch has not, as npulift::rms_norm, npulift::rotary_mul and npulift::swiglu.

On the CPU (and anywhere else) they compute the formula in plain torch, which is what verification compares with; on `npu` tensors they call torch_npu's own operator.
Formulas: Zhang and Sennrich 2019 (RMS norm), Su 2021 (rotary embedding, halves), Shazeer 2020 (SwiGLU); documentation of torch_npu for the argument order.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


@torch.library.custom_op("npulift::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2, -1) + eps) * weight; weight has the size of the last axis and x's dtype."""
    if x.device.type == "npu":
        import torch_npu

        return torch_npu.npu_rms_norm(x, weight, eps)[0]
    y = _wide(x)
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps) * _wide(weight)).to(x.dtype)


@torch.library.custom_op("npulift::rotary_mul", mutates_args=())
def rotary_mul(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x * cos + (-second half, first half) * sin over the last axis; x, cos and sin have four axes, and cos and sin may have size 1 in the first two."""
    if x.device.type == "npu":
        import torch_npu

        return torch_npu.npu_rotary_mul(x, cos, sin)
    half = x.shape[-1] // 2
    y = _wide(x)
    turned = torch.cat((-y[..., half:], y[..., :half]), -1)
    return (y * _wide(cos) + turned * _wide(sin)).to(x.dtype)


@torch.library.custom_op("npulift::swiglu", mutates_args=())
def swiglu(x: Tensor) -> Tensor:
    """silu(first half) * second half of the last axis."""
    if x.device.type == "npu":
        import torch_npu

        return torch_npu.npu_swiglu(x, -1)
    left, right = _wide(x).chunk(2, -1)
    return (torch.nn.functional.silu(left) * right).to(x.dtype)


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@rotary_mul.register_fake
def _(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@swiglu.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))
