"""NPU154 transposed-conv-stride: a transposed convolution with a stride over 2, on Ethos-U.

Why it hurts: the hardware's transposed convolution takes strides of 1 and 2; with 3 the compilation was seen to abort instead of leaving the operator on the CPU.
Bad:   nn.ConvTranspose2d(3, 1, 5, stride=3, padding=2)
Good:  insert the zeros yourself and use a plain convolution with the flipped kernel (equal), or resize and convolve
Source: pytorch/executorch issue 17668.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch.nn import functional

from npulift.capture import Capture, Op
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.rules.families import family
from npulift.targets.base import Target

CODE = "NPU154"
NAME = "transposed-conv-stride"


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for each such convolution."""
    if family(target) != "ethos-u":
        return
    for op in capture.exported_ops:
        if op.base not in ("aten::conv_transpose2d", "aten::conv_transpose1d"):
            continue
        stride = [int(x) for x in re.findall(r"\d+", op.scalars.get("stride", "1"))]
        if max(stride) > 2:
            error = zero_insertion_error(op) if op.base.endswith("2d") else None
            fix = _("Insert the zeros and use a plain convolution with the flipped kernel")
            fix = (fix + " " + _("(equal: largest difference {error:.1e})").format(error=error) if error is not None else fix) + _(", or resize and convolve.")
            yield Finding(
                CODE, NAME, Severity.ERROR,
                _("{name} has stride {stride}; Ethos-U takes transposed convolutions with a stride up to 2, and the compiler was seen to abort beyond it.").format(
                    name=op.base, stride=stride), op.location, op.module, fix,
                details={"stride": stride, "limit": 2, "zero_insertion_max_abs_diff": error},
            )


def zero_insertion_error(op: Op) -> float | None:
    """Largest absolute difference between the transposed convolution and zero insertion plus convolution, on random data; groups of 1, dilation 1 only."""
    def pair(name: str, default: int) -> list[int]:
        numbers = [int(x) for x in re.findall(r"\d+", op.scalars.get(name, str(default)))]
        return (numbers * 2)[:2]

    if pair("groups", 1)[0] != 1 or set(pair("dilation", 1)) != {1}:
        return None
    generator = torch.Generator().manual_seed(0)
    x = torch.randn([s if isinstance(s, int) else 2 for s in op.inputs[0].shape], generator=generator)
    w = torch.randn([int(s) for s in op.inputs[1].shape], generator=generator)
    stride, padding, extra = pair("stride", 1), pair("padding", 0), pair("output_padding", 0)
    wanted = functional.conv_transpose2d(x, w, stride=stride, padding=padding, output_padding=extra)
    return float((zero_insertion(x, w, stride, padding, extra) - wanted).abs().max())


def zero_insertion(x: torch.Tensor, w: torch.Tensor, stride: list[int], padding: list[int], extra: list[int]) -> torch.Tensor:
    """conv_transpose2d as zero insertion and conv2d. x: (N, C, H, W), w: (C, K, kh, kw)."""
    n, c, h, width = x.shape
    spread = x.new_zeros(n, c, (h - 1) * stride[0] + 1, (width - 1) * stride[1] + 1)
    spread[:, :, :: stride[0], :: stride[1]] = x
    kh, kw = w.shape[2:]
    pads = (kw - 1 - padding[1], kw - 1 - padding[1] + extra[1], kh - 1 - padding[0], kh - 1 - padding[0] + extra[0])
    return functional.conv2d(functional.pad(spread, pads), w.flip(2, 3).transpose(0, 1))
