"""Host tensors over device memory: on hollow CANN the memory of the device is memory of this process."""

from __future__ import annotations

import ctypes

import torch


def over(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor with the same elements, sizes and strides, over the same memory. Writing to it writes to the device tensor.

    It must not outlive the tensor. Private formats (FRACTAL_NZ, ...) are taken as plain strided memory, which they are on hollow CANN.
    """
    size = tensor.dtype.itemsize
    if tensor.numel() == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    buffer = (ctypes.c_char * (span * size)).from_address(tensor.data_ptr())
    flat = torch.frombuffer(buffer, dtype=tensor.dtype, count=span)
    view = flat.as_strided(tensor.shape, tensor.stride())
    if tensor.is_conj():
        view = view.conj()
    if tensor.is_neg():
        view = torch._neg_view(view)
    return view
