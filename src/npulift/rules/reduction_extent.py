"""NPU153 reduction-extent: a mean over axes whose product is 65,536 or more, on Ethos-U.

Why it hurts: the hardware's reduction takes less than 65,536 elements; executorch of January 2026 refused a mean over (256, 400) = 102,400 ("Product of axes must be <65536") and left it on
the CPU. Version 1.5.1 delegates it (seen here).
Bad:   x.mean(dim=(1, 2))
Good:  x.mean(2).mean(1): the same mean, each step within the limit
Source: pytorch/executorch issue 16779.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod

import torch

from npulift.capture import Capture, Op
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.rules.families import family, installed
from npulift.targets.base import Target

CODE = "NPU153"
NAME = "reduction-extent"
LIMIT = 65536
DELEGATES_SINCE = (1, 5, 1)  # executorch: lowers it wholly, tried


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for each mean or sum over too many elements."""
    if family(target) != "ethos-u":
        return
    for op in capture.exported_ops:
        axes = reduced_axes(op)
        sizes = [s for a in axes if isinstance(s := op.inputs[0].shape[a], int)]
        product = prod(sizes)
        if not axes or len(sizes) != len(axes) or product < LIMIT:
            continue
        have = installed("executorch")
        fine = have is not None and have >= DELEGATES_SINCE
        steps = "".join(f".mean({a}, keepdim=True)" for a in sorted(axes, reverse=True))
        error = split_error([int(s) if isinstance(s, int) else 2 for s in op.inputs[0].shape], axes)
        yield Finding(
            CODE, NAME, Severity.INFO if fine else Severity.WARNING,
            _("{name} reduces {sizes} = {product} elements, not below 65536: executorch of January 2026 leaves it on the CPU; 1.5.1 delegates it ({state}).").format(
                name=op.base, sizes=" x ".join(map(str, sizes)), product=product,
                state=_("installed: {version}").format(version=".".join(map(str, have))) if have else _("not installed here")),
            op.location, op.module,
            _("Reduce one axis at a time, x{steps}: largest difference {error:.1e} on random data.").format(steps=steps, error=error),
            details={"product": product, "axes": axes, "split_max_abs_diff": error, "executorch": ".".join(map(str, have)) if have else None},
        )


def reduced_axes(op: Op) -> list[int]:
    """Axes over which a mean or sum goes, [] for any other operator."""
    if op.base not in ("aten::mean", "aten::sum") or not op.inputs:
        return []
    rank = len(op.inputs[0].shape)
    text = op.scalars.get("dim", "None")
    axes = [int(a) % max(rank, 1) for a in re.findall(r"-?\d+", text)]
    return axes or (list(range(rank)) if text in ("None", "[]") else [])


def split_error(shape: list[int], axes: list[int]) -> float:
    """Largest absolute difference between the mean over all axes at once and one axis at a time, on random data."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    y = x
    for axis in sorted(axes, reverse=True):
        y = y.mean(axis, keepdim=True)
    return float((y - x.mean(axes, keepdim=True)).abs().max())
