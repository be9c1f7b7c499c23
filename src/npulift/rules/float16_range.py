"""NPU312 float16-range: values that float16 cannot hold, on a chip that computes in float16.

Why it hurts: beyond 65504 float16 gives inf (or sticks at 65504 where the chip saturates); what follows becomes inf, NaN or wrong.
Bad:   variance = (x - mean).pow(2).sum() / n        # the sum passes 65504 long before the mean does
Good:  scale first (x / 64), use mean instead of sum, or keep this operator in float32
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from npulift.capture import Capture
from npulift.findings import Finding, Severity
from npulift.messages import _, ngettext
from npulift.precision.values import Watching, graph_of, inputs_of, runnable
from npulift.rules.families import computes_in_float16
from npulift.targets.base import Target

CODE = "NPU312"
NAME = "float16-range"
LARGEST = 65504.0


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding, at the first float32 operator whose result leaves float16's range on the example inputs."""
    if not computes_in_float16(target) or not runnable(capture):
        return
    over: dict[str, float] = {}

    def watch(node: torch.fx.Node, value: Any) -> None:
        if node.op == "call_function" and isinstance(value, torch.Tensor) and value.dtype is torch.float32 and value.numel():
            finite = value[torch.isfinite(value)]
            largest = float(finite.abs().max()) if finite.numel() else 0.0
            if largest > LARGEST and not _is_mask(value):
                over[node.name] = largest

    try:
        with torch.no_grad():
            Watching(graph_of(capture), watch).run(*inputs_of(capture))
    except Exception:  # no evidence then
        return
    ops = [o for o in capture.exported_ops if o.node in over]
    if ops:
        first, n = ops[0], len(ops)
        yield Finding(
            CODE, NAME, Severity.WARNING,
            ngettext("{name} gives {value:.4g} on the example inputs, and {target} computes in float16, which ends at 65504 ({n} operator in all).",
                     "{name} gives {value:.4g} on the example inputs, and {target} computes in float16, which ends at 65504 ({n} operators in all).", n).format(
                name=first.base, value=over[first.node], target=target.name, n=n),
            first.location, first.module,
            _("Scale before the operator, take a mean instead of a sum, or keep it in float32; npulift compare --precision float16 shows what it does to the output."),
            details={"largest": over[first.node], "operators": {o.node: over[o.node] for o in ops[:20]}},
        )


def _is_mask(value: torch.Tensor) -> bool:
    """A mask holds zeros and one huge negative number; float16's -inf serves it as well."""
    return bool((value <= 0).all()) and bool((value[value < -LARGEST] == value.min()).all())
