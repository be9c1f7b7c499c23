"""NPU144 antialias-resize: interpolation with antialias=True.

Why it hurts: NPU compilers have no kernel for antialiased resizing, the older ONNX exporter has no form for it, and its definition differs between PyTorch and ONNX.
Bad:   F.interpolate(img, size=(224, 224), mode='bilinear', antialias=True) inside the model
Good:  resize in the preprocessing; or two matrix products with constant weights; when the output is not smaller than the input, antialias=False is the same
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

from npulift.capture import Capture, Op
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.rules.families import is_npu
from npulift.targets.base import Target

CODE = "NPU144"
NAME = "antialias-resize"


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for each antialiased resize (base names that end in _aa, whatever the overload)."""
    for op in capture.exported_ops or capture.eager_ops:
        if not (op.base.startswith("aten::_upsample") and op.base.endswith("_aa")):
            continue
        before, after = op.inputs[0].shape[-2:], op.outputs[0].shape[-2:]
        known = all(isinstance(s, int) for s in (*before, *after))
        up = known and all(int(b) >= int(a) for a, b in zip(before, after, strict=True))
        details: dict[str, object] = {"operator": op.name, "input": list(before), "output": list(after), "upscale": up}
        message = _("{name} resizes {before} to {after} with antialiasing, which Ascend, Qualcomm, Ethos-U and Rockchip compilers do not support.").format(
            name=op.base, before=_size(before), after=_size(after))
        if not known:
            fix = _("Resize in the preprocessing; antialias=False is the same only where the output is not smaller than the input.")
        elif up and plain_error(op) < 1e-5:
            error = plain_error(op)
            details["plain_max_abs_diff"] = error
            fix = _("The output is not smaller than the input, so antialias can be dropped with no change (largest difference {error:.1e} on random data).").format(error=error)
        else:
            dropped, matrices = plain_error(op), matrices_error(op)
            details |= {"plain_max_abs_diff": dropped, "matrices_max_abs_diff": matrices}
            what = _("Antialiased bicubic uses other coefficients") if up else _("This is a downscale")
            fix = _("{what}: antialias=False would change the result (by up to {dropped:.2g} on random data). Use two products with fixed weight matrices, "
                    "H and W apart (largest difference {error:.1e}), or resize in the preprocessing.").format(what=what, dropped=dropped, error=matrices)
        yield Finding(CODE, NAME, Severity.WARNING if is_npu(target) else Severity.INFO, message, op.location, op.module, fix, details=details)


def _size(sizes: tuple[int | str, ...]) -> str:
    return "x".join(map(str, sizes))


def _resize(op: Op, x: torch.Tensor, antialias: bool, size: tuple[int, int] | None = None) -> torch.Tensor:
    mode = "bicubic" if "bicubic" in op.base else "bilinear"
    align = op.scalars.get("align_corners") == "True"
    target = size or tuple(int(s) for s in op.outputs[0].shape[-2:])
    return functional.interpolate(x, size=target, mode=mode, align_corners=align, antialias=antialias)


def plain_error(op: Op) -> float:
    """Largest absolute difference that dropping antialias makes, on random values in 0..1 of the operator's size."""
    x = torch.rand(1, 1, *(int(s) for s in op.inputs[0].shape[-2:]), generator=torch.Generator().manual_seed(0))
    return float((_resize(op, x, True) - _resize(op, x, False)).abs().max())


def matrices_error(op: Op) -> float:
    """Largest absolute difference between the resize and A @ x @ B with constant A and B."""
    h, w = (int(s) for s in op.inputs[0].shape[-2:])
    oh, ow = (int(s) for s in op.outputs[0].shape[-2:])
    x = torch.rand(1, 1, h, w, generator=torch.Generator().manual_seed(0))
    # The weights of each axis: what the resize does to the columns of a unit matrix, the other axis left at its size.
    a = _resize(op, torch.eye(h)[None, None], True, (oh, h))[0, 0]
    b = _resize(op, torch.eye(w)[None, None], True, (w, ow))[0, 0]
    return float((a @ x @ b - _resize(op, x, True)).abs().max())
