"""How the chip's arithmetic differs from the host's: saturation instead of infinities, no denormals.

Source: INF_NAN_MODE_ENABLE in the documentation of CANN: 1 (the default of the 910B and later) keeps inf and nan as IEEE 754 has them; 0 (the only mode of
the 910A and 310P) gives the largest finite number instead of inf, and 0 instead of nan. The cube adds up products of float16 and bfloat16 in
float32 and rounds once, as the host's kernels do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

SATURATING_CHIPS = ("Ascend910A", "Ascend910Pro", "Ascend910PremiumA", "Ascend310")  # how their names begin

# Operators that move values and compute none: an infinity that the user wrote passes through them.
_MOVES = frozenset((
    "aten::copy_", "aten::_to_copy", "aten::clone", "aten::fill_", "aten::full", "aten::full_like", "aten::cat", "aten::stack",
    "aten::where", "aten::masked_fill", "aten::masked_fill_", "aten::index", "aten::index_select", "aten::gather", "aten::embedding",
    "aten::scatter", "aten::scatter_", "aten::index_put_", "aten::index_copy_", "aten::triu", "aten::tril", "aten::repeat",
    "aten::constant_pad_nd", "aten::new_full", "aten::scalar_tensor", "aten::isinf", "aten::isnan", "aten::isfinite",
    "aten::slice_scatter", "aten::select_scatter", "aten::flip", "aten::roll", "aten::contiguous", "aten::triu_", "aten::tril_",
    "aten::nan_to_num", "aten::max_pool2d_with_indices", "aten::amax", "aten::amin", "aten::max", "aten::min", "aten::topk", "aten::sort",
))


def saturates(soc: str, environment: Mapping[str, str] = os.environ) -> bool:
    """True when results that overflow become the largest finite number. soc: what the driver calls the chip."""
    return soc in ("Ascend910", "Ascend910B") or soc.startswith(SATURATING_CHIPS) or environment.get("INF_NAN_MODE_ENABLE") == "0"


def computes(name: str) -> bool:
    """False for operators that only move values ('aten::cat')."""
    return name not in _MOVES


def saturate(values: torch.Tensor) -> torch.Tensor:
    """In place: inf to the largest finite number of the dtype (65504 for float16), nan to 0."""
    if values.is_floating_point() and values.dtype in (torch.float16, torch.float32, torch.bfloat16):
        largest = torch.finfo(values.dtype).max
        values.nan_to_num_(nan=0.0, posinf=largest, neginf=-largest)
    return values
