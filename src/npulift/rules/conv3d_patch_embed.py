"""NPU142 conv3d-patch-embed: a three-dimensional convolution whose kernel equals its stride, as in the patch embedding of a vision-language model.

Why it hurts: 310P has no kernel for Conv3d, older CANN has it only in part, and mobile compilers do not know it. With kernel = stride it is nothing but a matrix
product over flattened patches.
Bad:   self.proj = nn.Conv3d(3, 1152, (2, 14, 14), (2, 14, 14), bias=False)
Good:  self.proj = nn.Linear(3 * 2 * 14 * 14, 1152, bias=False); weight = conv.weight.flatten(1)
Source: Ascend/pytorch issue 73, vllm-project/vllm-ascend issue 5017.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch.nn import functional

from npulift.capture import Capture, Op
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.precision.values import runnable
from npulift.rules.families import family, is_npu
from npulift.targets.base import Target

CODE = "NPU142"
NAME = "conv3d-patch-embed"


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for each convolution of this kind."""
    if not is_npu(target):
        return
    for op in capture.exported_ops or capture.eager_ops:
        kernel = patch_kernel(op)
        if kernel is None:
            continue
        sizes = op.inputs[0].shape[-3:]
        one = tuple(sizes) == kernel
        channels, features = op.inputs[1].shape[1], op.inputs[1].shape[0]
        error = linear_error(op) if runnable(capture) else None
        what = _("nn.Linear({k}, {n}) on the flattened patch, with weight.flatten(1)").format(k=int(channels) * kernel[0] * kernel[1] * kernel[2], n=features)
        if not one:
            what = _("a reshape into patches and {linear}").format(linear=what)
        fix = _("Replace it by {what}: the same numbers up to rounding.").format(what=what)
        if error is not None:
            fix += " " + _("Checked on random data of this shape: largest difference {error:.1e}.").format(error=error)
        no_kernel = family(target) == "ascend" and "310p" in target.name
        message = _("aten::conv3d with kernel = stride = {kernel} is a matrix product over patches; {target} supports Conv3d not at all or in part.").format(
            kernel=kernel, target=target.name)
        yield Finding(
            CODE, NAME, Severity.ERROR if no_kernel else Severity.WARNING, message, op.location, op.module, fix,
            details={"kernel": list(kernel), "whole_input": one, "linear_max_abs_diff": error, "in_features": int(channels) * kernel[0] * kernel[1] * kernel[2]},
        )


def patch_kernel(op: Op) -> tuple[int, int, int] | None:
    """Kernel of a Conv3d that cuts its input into patches without overlap, padding or groups; None for any other operator."""
    if op.base not in ("aten::conv3d", "aten::convolution") or len(op.inputs) < 2 or len(op.inputs[1].shape) != 5:
        return None
    numbers = {k: [int(x) for x in re.findall(r"-?\d+", v)] for k, v in op.scalars.items() if k in ("stride", "padding", "dilation", "groups")}
    if op.scalars.get("transposed") == "True" or set(numbers.get("padding", [0])) != {0} or set(numbers.get("dilation", [1])) != {1} or numbers.get("groups", [1]) != [1]:
        return None
    kernel = tuple(int(k) for k in op.inputs[1].shape[2:])
    stride = tuple((numbers.get("stride") or [1]) * 3)[:3]
    fits = all(isinstance(s, str) or s % k == 0 for s, k in zip(op.inputs[0].shape[-3:], kernel, strict=True))
    return kernel if stride == kernel and fits and kernel != (1, 1, 1) else None  # type: ignore[return-value]


def linear_error(op: Op) -> float | None:
    """Largest absolute difference between the convolution and reshape + linear, on random data of the operator's shape."""
    generator = torch.Generator().manual_seed(0)
    shape = [s if isinstance(s, int) else 2 for s in op.inputs[0].shape]
    x, w = torch.randn(shape, generator=generator), torch.randn([int(s) for s in op.inputs[1].shape], generator=generator) * 0.02
    if x.ndim == 4:
        x = x[None]
    with torch.no_grad():
        wanted = functional.conv3d(x, w, stride=w.shape[2:])
        return float((linear_form(x, w) - wanted).abs().max())


def linear_form(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """conv3d(x, weight, stride=kernel) as a matrix product. x: (N, C, D, H, W)."""
    n, c, *sizes = x.shape
    (kd, kh, kw) = weight.shape[2:]
    d, h, w = sizes[0] // kd, sizes[1] // kh, sizes[2] // kw
    patches = x.reshape(n, c, d, kd, h, kh, w, kw).permute(0, 2, 4, 6, 1, 3, 5, 7).reshape(n, d, h, w, -1)
    return functional.linear(patches, weight.flatten(1)).permute(0, 4, 1, 2, 3)
