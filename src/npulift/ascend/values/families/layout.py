"""Operators that move values: casts of dtype and of format, confusion_transpose, transposes, slices, one-hot, rotary position embedding.

Sources: documentation of torch_npu (npu_format_cast, npu_dtype_cast, npu_confusion_transpose, npu_rotary_mul, npu_interleave_rope, npu_slice, npu_pad, npu_one_hot).
A format is how the memory lies, so a cast of it changes no value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from npulift.ascend.values.gradient import gradients
from npulift.ascend.values.registry import gives

Tensor = torch.Tensor

# c10::ScalarType by number, as torch_npu passes it.
_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64, torch.complex32, torch.complex64,
           torch.complex128, torch.bool)


def _dtype(code: Any) -> torch.dtype:
    if isinstance(code, torch.dtype):
        return code
    if code == 15:
        return torch.bfloat16
    if 0 <= code < len(_DTYPES):
        return _DTYPES[code]
    raise NotImplementedError(f"npu_dtype_cast to dtype number {code}")


@gives("npu::npu_format_cast", "npu::_npu_format_cast")
def npu_format_cast(input: Tensor, *format: Any, **options: Any) -> Tensor:
    """The same values in another format."""
    return input.clone()


@gives("npu::npu_format_cast_", "npu::npu_format_cast_.acl_format")
def npu_format_cast_(input: Tensor, src: Any = None, acl_format: Any = None, **options: Any) -> Tensor:
    """In place: with a tensor, its values in the format of this one; with a number, the same values."""
    return input.copy_(src) if isinstance(src, Tensor) else input


@gives("npu::npu_dtype_cast", "npu::_npu_dtype_cast", "npu::npu_dtype_cast_backward", "npu::_npu_dtype_cast_backward")
def npu_dtype_cast(input: Tensor, dtype: Any, *more: Any, **options: Any) -> Tensor:
    """input.to(dtype); the gradient is the same the other way."""
    return input.to(_dtype(dtype))


@gives("npu::npu_dtype_cast_")
def npu_dtype_cast_(input: Tensor, src: Tensor) -> Tensor:
    """In place."""
    return input.copy_(src)


@gives("npu::npu_confusion_transpose")
def npu_confusion_transpose(input: Tensor, perm: list[int], shape: list[int], transpose_first: bool) -> Tensor:
    """permute(perm) then reshape(shape), or reshape then permute."""
    found = input.permute(perm).reshape(shape) if transpose_first else input.reshape(shape).permute(perm)
    return found.contiguous()


@gives("npu::npu_confusion_transpose_backward")
def npu_confusion_transpose_backward(grad: Tensor, perm: list[int], shape: list[int], transpose_first: bool) -> Tensor:
    """The way back; shape is that of the forward input."""
    inverse = [0] * len(perm)
    for place, dim in enumerate(perm):
        inverse[dim] = place
    if transpose_first:
        return grad.reshape([shape[d] for d in perm]).permute(inverse).contiguous()
    return grad.permute(inverse).reshape(shape).contiguous()


@gives("npu::npu_transpose")
def npu_transpose(input: Tensor, perm: list[int], require_contiguous: bool = True) -> Tensor:
    """permute, made contiguous."""
    return input.permute(perm).contiguous()


@gives("npu::npu_broadcast")
def npu_broadcast(input: Tensor, size: list[int]) -> Tensor:
    """expand, made contiguous."""
    return input.expand(size).contiguous()


@gives("npu::npu_reshape")
def npu_reshape(input: Tensor, shape: list[int], can_refresh: bool = False) -> Tensor:
    """reshape."""
    return input.reshape(shape).clone()


@gives("npu::npu_slice")
def npu_slice(input: Tensor, offsets: list[int], size: list[int]) -> Tensor:
    """size elements from offsets on, by dim."""
    for dim, (start, length) in enumerate(zip(offsets, size, strict=True)):
        input = input.narrow(dim, start, length if length >= 0 else input.shape[dim] - start)
    return input.contiguous()


@gives("npu::npu_pad")
def npu_pad(input: Tensor, paddings: list[int]) -> Tensor:
    """Zeros before and after each dim, the first dim's pair first."""
    pairs = [(paddings[i], paddings[i + 1]) for i in range(0, len(paddings), 2)]
    return functional.pad(input, [n for pair in reversed(pairs) for n in pair])


@gives("npu::npu_one_hot")
def npu_one_hot(input: Tensor, num_classes: int = -1, depth: int = 1, on_value: float = 1, off_value: float = 0) -> Tensor:
    """float32: on_value at the class, off_value elsewhere; num_classes (-1) is the dim, depth the number of classes."""
    classes = torch.arange(depth)
    found = torch.where(input.unsqueeze(-1) == classes, float(on_value), float(off_value)).float()
    return found if num_classes == -1 else found.movedim(-1, num_classes)


@gives("npu::npu_stride_copy")
def npu_stride_copy(input: Tensor, shape: list[int], stride: list[int], storage_offset: int) -> Tensor:
    """as_strided, copied."""
    return input.contiguous().as_strided(shape, stride, int(storage_offset)).clone()


@gives("npu::npu_max", "npu::npu_max.dim")
def npu_max(input: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """(values, indices as int32)."""
    values, indices = input.max(dim, keepdim)
    return values, indices.int()


@gives("npu::npu_min", "npu::npu_min.dim")
def npu_min(input: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """(values, indices as int32)."""
    values, indices = input.min(dim, keepdim)
    return values, indices.int()


@gives("npu::npu_max_backward", "npu::npu_min_backward")
def npu_max_backward(grad: Tensor, dim: int, indices: Tensor, sizes: list[int], keepdim: bool) -> Tensor:
    """The gradient goes to where the value was."""
    if not keepdim and sizes:
        grad, indices = grad.unsqueeze(dim), indices.unsqueeze(dim)
    return torch.zeros(sizes, dtype=grad.dtype).scatter_(dim, indices.long(), grad)


@gives("npu::npu_sort_v2")
def npu_sort_v2(input: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    """Sorted values only."""
    return input.sort(dim, descending)[0]


def _turned(x: Tensor, mode: str) -> Tensor:
    if mode == "interleave":
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    left, right = x.chunk(2, -1)
    return torch.cat((-right, left), -1)


def _rotate(x: Tensor, r1: Tensor, r2: Tensor, mode: str) -> Tensor:
    return x * r1 + _turned(x, mode) * r2


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


@gives("npu::npu_rotary_mul")
def npu_rotary_mul(input: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None) -> Tensor:
    """x * r1 + turned(x) * r2: halves swapped with a sign ('half'), neighbours ('interleave'), or x @ rotate."""
    x = _wide(input)
    turned = x @ _wide(rotate) if rotate is not None else _turned(x, rotary_mode)
    return (x * _wide(r1) + turned * _wide(r2)).to(input.dtype)


@gives("npu::npu_rotary_mul_backward")
def npu_rotary_mul_backward(grad: Tensor, input: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half") -> tuple[Any, ...]:
    """Gradients of x, r1 and r2."""
    return tuple(gradients(lambda x, a, b: _rotate(x, a, b, rotary_mode), (input, r1, r2), (grad,)))


@gives("npu::npu_apply_rotary_pos_emb")
def npu_apply_rotary_pos_emb(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, layout: str = "BSND", rotary_mode: str = "half",
) -> tuple[Tensor, Tensor]:
    """Query and key, each rotated by cos and sin."""
    mode = "interleave" if rotary_mode == "interleave" else "half"
    return tuple(_rotate(_wide(x), _wide(cos), _wide(sin), mode).to(x.dtype) for x in (query, key))  # type: ignore[return-value]


@gives("npu::npu_interleave_rope")
def npu_interleave_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Even elements first, odd ones after them, then rotated by halves."""
    apart = torch.cat((x[..., ::2], x[..., 1::2]), -1)
    return _rotate(_wide(apart), _wide(cos), _wide(sin), "half").to(x.dtype)
