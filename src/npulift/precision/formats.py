"""Number formats as a CPU can imitate them: values held in float32 on the grid of a narrower format."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from npulift.errors import NpuliftError
from npulift.messages import _


@dataclass(frozen=True)
class Format:
    """A precision to imitate.

    name: as the user typed it.   floating: dtype of a floating-point format, None for integers.   activation, weight: bits of an integer format (16 or more: activations stay in
    float16 steps of their range).   threshold: relative error (L2) from which on an operator counts as bad.   saturates: overflow sticks at the largest value instead of inf.
    """

    name: str
    floating: torch.dtype | None
    activation: int = 0
    weight: int = 0
    threshold: float = 0.01
    saturates: bool = False

    @property
    def largest(self) -> float:
        """Largest finite value of a floating-point format; infinity for integers, which clip by their range."""
        return float(torch.finfo(self.floating).max) if self.floating else float("inf")

    @property
    def tiny(self) -> float:
        """Smallest normal number."""
        return float(torch.finfo(self.floating).tiny) if self.floating else 0.0


_FLOATS = {
    "float32": (torch.float32, 1e-4), "fp32": (torch.float32, 1e-4), "f32": (torch.float32, 1e-4), "float16": (torch.float16, 0.01), "fp16": (torch.float16, 0.01),
    "f16": (torch.float16, 0.01), "half": (torch.float16, 0.01), "bfloat16": (torch.bfloat16, 0.05), "bf16": (torch.bfloat16, 0.05),
}


def find_format(name: str, *, saturates: bool = False) -> Format:
    """The format of a name: float16, bfloat16, float32, int8, int4, 16a4w and the like. Raises NpuliftError for anything else."""
    key = name.lower()
    if key in _FLOATS:
        dtype, threshold = _FLOATS[key]
        return Format({"fp16": "float16", "f16": "float16", "half": "float16", "bf16": "bfloat16", "fp32": "float32", "f32": "float32"}.get(key, key), dtype, threshold=threshold, saturates=saturates and dtype is torch.float16)
    if found := re.fullmatch(r"(?:int|i)(4|8|16)", key):
        bits = int(found.group(1))
        return Format(f"int{bits}", None, max(bits, 8), bits, {4: 0.3, 8: 0.15, 16: 0.01}[bits])
    if found := re.fullmatch(r"(?:(\d+)a(\d+)w|w(\d+)a(\d+))", key):
        activation, weight = (int(found.group(1)), int(found.group(2))) if found.group(1) else (int(found.group(4)), int(found.group(3)))
        if 2 <= activation <= 16 and 2 <= weight <= 16:
            return Format(key, None, activation, weight, 0.3 if weight < 8 else 0.15 if min(activation, weight) < 16 else 0.01)
    raise NpuliftError(_("There is no precision {name}. There are: float16, bfloat16, float32, int8, int4, int16, and activations and weights apart as 16a4w or 8a8w.").format(name=name))


def rounded(value: torch.Tensor, form: Format) -> torch.Tensor:
    """The value on the grid of a floating-point format, as float32. Beyond the largest it is inf, or the largest where the format saturates."""
    if form.floating is None or not value.is_floating_point():
        return value
    if form.saturates:
        value = value.clamp(-form.largest, form.largest)
    return value.to(form.floating).to(torch.float32)


def quantised(value: torch.Tensor, low: float, high: float, bits: int) -> torch.Tensor:
    """Affine quantisation with a fixed range (of the reference, as calibration would give it), and back."""
    low, high = min(low, 0.0), max(high, 0.0)
    if high <= low:
        return value
    step = (high - low) / (2**bits - 1)
    zero = round(-low / step)
    return ((value / step).round().add(zero).clamp(0, 2**bits - 1) - zero) * step


def quantised_weight(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """Symmetric quantisation by output channel (axis 0), and back."""
    flat = weight.reshape(weight.shape[0], -1) if weight.ndim > 1 else weight.reshape(1, -1)
    top = 2 ** (bits - 1) - 1
    scale = flat.abs().amax(1, keepdim=True).clamp(min=1e-12) / top
    return ((flat / scale).round().clamp(-top - 1, top) * scale).reshape(weight.shape)
