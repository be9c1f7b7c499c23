"""NPU143 linear-upsampling: one-dimensional linear interpolation on Ascend.

Why it hurts: it was reported to be far slower on the NPU than on the CPU for large scales (a vocoder that upsamples by 300). The cause was never settled, so this
is a risk to measure, not a fact about your chip.
Bad:   F.interpolate(f0, scale_factor=300.0, mode='linear')
Good:  f0 @ self.weights, with a constant interpolation matrix of (length in, length out): more arithmetic, but on the matrix unit
Source: Ascend/pytorch issue 69 (times only).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch
from torch.nn import functional

from npulift.capture import Capture, Op
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.rules.families import family
from npulift.targets.base import Target

CODE = "NPU143"
NAME = "linear-upsampling"


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for each such operator."""
    if family(target) != "ascend":
        return
    for op in capture.exported_ops or capture.eager_ops:
        if op.base != "aten::upsample_linear1d":
            continue
        shape, out = op.inputs[0].shape, op.outputs[0].shape
        details: dict[str, object] = {"confidence": "low", "input": list(shape), "output": list(out)}
        message = _("aten::upsample_linear1d from {a} to {b}: reported slow on Ascend, cause unknown (confidence: low). Measure it.").format(a=shape[-1], b=out[-1])
        fix = _("Try a product with a constant interpolation matrix, which the matrix unit computes.")
        if all(isinstance(s, int) for s in (*shape, *out)):
            now, then = _flops(op)
            error = matrix_error(op)
            details |= {"flops_now": now, "flops_matrix": then, "matrix_max_abs_diff": error}
            fix = _("Try a product with a constant ({a} x {b}) interpolation matrix: {then:,} FLOP on the matrix unit instead of {now:,} FLOP on the vector unit; "
                    "largest difference {error:.1e} on random data.").format(a=shape[-1], b=out[-1], then=then, now=now, error=error)
        yield Finding(CODE, NAME, Severity.INFO, message, op.location, op.module, fix, details=details)


def _flops(op: Op) -> tuple[int, int]:
    """(interpolation: two multiplications and an addition an output element; matrix product)."""
    out = [int(s) for s in op.outputs[0].shape]
    return 3 * prod(out), 2 * prod(out) * int(op.inputs[0].shape[-1])


def matrix_error(op: Op) -> float:
    """Largest absolute difference between the interpolation and its matrix product, on random data."""
    length, scales = int(op.inputs[0].shape[-1]), op.scalars.get("scale_factors", "None")
    align = op.scalars.get("align_corners") == "True"
    options: dict[str, object] = {"size": int(op.outputs[0].shape[-1])} if scales in ("None", "") else {"scale_factor": float(scales.strip("[]").split(",")[0])}
    x = torch.randn(1, 4, length, generator=torch.Generator().manual_seed(0))
    matrix = functional.interpolate(torch.eye(length)[None], mode="linear", align_corners=align, **options)[0]  # type: ignore[arg-type]
    return float((x @ matrix - functional.interpolate(x, mode="linear", align_corners=align, **options)).abs().max())  # type: ignore[arg-type]
