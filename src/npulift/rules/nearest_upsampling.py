"""NPU152 nearest-upsampling: nearest-neighbour upsampling on Ethos-U55.

Why it hurts: executorch versions of 2026 left upsample_nearest2d on the CPU for U55 (not for U85), with quantise and dequantise at its borders; that one operator took most of
the time. Newer versions delegate it (1.5.1 does: seen here), so what counts is the version installed.
Bad:   F.interpolate(x, scale_factor=2.0, mode='nearest') with an old executorch
Good:  a newer executorch; or nn.ConvTranspose2d(C, C, 2, stride=2, groups=C, bias=False) with weights of one: equal
Source: pytorch/executorch issue 21585.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

from npulift.capture import Capture
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.rules.families import family, installed
from npulift.targets.base import Target

CODE = "NPU152"
NAME = "nearest-upsampling"
DELEGATES_SINCE = (1, 5, 1)  # executorch: lowers wholly for U55 there, tried


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for each such operator, on U55 and U65."""
    if family(target) != "ethos-u" or not target.name.startswith(("ethos-u55", "ethos-u65")):
        return
    for op in capture.exported_ops:
        if op.base not in ("aten::upsample_nearest2d", "aten::_upsample_nearest_exact2d"):
            continue
        a, b = op.inputs[0].shape[-2:], op.outputs[0].shape[-2:]
        whole = [int(y) // int(x) for x, y in zip(a, b, strict=True) if isinstance(x, int) and isinstance(y, int) and y % x == 0]
        have = installed("executorch")
        fine = have is not None and have >= DELEGATES_SINCE
        error = transposed_error(whole[0], whole[1]) if len(whole) == 2 else None
        state = _("the installed {version} delegates it").format(version=".".join(map(str, have))) if fine and have else _(
            "the installed {version} is older than the one that was tried").format(version=".".join(map(str, have))) if have else _(
            "executorch is not installed here, so the compiler cannot be asked")
        fix = _("Ask the compiler that you deploy with (npulift check uses the installed one).")
        if error is not None:
            fix += " " + _("An equal form for any version: nn.ConvTranspose2d(C, C, {k}, stride={k}, groups=C, bias=False) with weights of one (largest difference {error:.1e}).").format(
                k=tuple(whole), error=error)
        yield Finding(
            CODE, NAME, Severity.INFO if fine else Severity.WARNING,
            _("aten::upsample_nearest2d stayed on the CPU for U55 with older executorch versions (U85 takes it); 1.5.1 delegates it, and {state}.").format(state=state),
            op.location, op.module, fix,
            details={"operator": op.base, "scale": whole, "transposed_conv_max_abs_diff": error, "executorch": ".".join(map(str, have)) if have else None, "delegated_by_installed": fine if have else None},
        )


def transposed_error(rows: int, columns: int) -> float:
    """Largest absolute difference between nearest upsampling by whole factors and a depthwise transposed convolution with ones."""
    x = torch.randn(1, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    weight = torch.ones(3, 1, rows, columns)
    return float((functional.conv_transpose2d(x, weight, stride=(rows, columns), groups=3) - functional.interpolate(x, scale_factor=(float(rows), float(columns)), mode="nearest")).abs().max())
