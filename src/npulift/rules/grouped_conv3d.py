"""NPU141 grouped-conv3d: a three-dimensional convolution in groups.

Why it hurts: aclnnConvolution of CANN before 8.1.RC1 takes groups = 1 or groups = channels only and stops with EZ1001 otherwise; allowing internal
formats (allow_internal_format=True) makes it work through the old kernel, at the price of format conversions (TransData) that take longer than the convolution.
Bad:   nn.Conv3d(24, 24, 3, groups=3)
Good:  CANN 8.1.RC1 or later; or torch.cat([conv_i(part) for conv_i, part in zip(convs, x.chunk(3, 1))], 1)
Source: Ascend/pytorch issue 85.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

from npulift.capture import Capture, Op
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.precision.values import graph_of, runnable
from npulift.rules.families import family, is_npu
from npulift.targets.base import Target

CODE = "NPU141"
NAME = "grouped-conv3d"


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for each such convolution."""
    if not is_npu(target):
        return
    for op in capture.find("aten::conv3d", origin="export") if capture.exported_ops else ():
        groups = int(op.scalars.get("groups", "1"))
        channels = op.inputs[0].shape[1] if len(op.inputs[0].shape) == 5 else op.inputs[0].shape[0]
        if not isinstance(channels, int) or not 1 < groups < channels:
            continue
        error = split_error(capture, op)
        details = {"groups": groups, "in_channels": channels, "split_max_abs_diff": error}
        split = _("split the convolution into {groups} of {n} channels each and concatenate").format(groups=groups, n=channels // groups)
        if error is not None:
            split += " " + _("(equal output: largest difference {error:.1e} here)").format(error=error)
        if family(target) == "ascend":
            yield Finding(
                CODE, NAME, Severity.ERROR,
                _("aten::conv3d with groups={groups} and {channels} input channels: CANN before 8.1.RC1 takes groups = 1 or groups = channels only (EZ1001).").format(
                    groups=groups, channels=channels),
                op.location, op.module,
                _("Upgrade to CANN 8.1.RC1 or later, or {split}. allow_internal_format=True only trades the error for TransData conversions, which cost more time.").format(
                    split=split),
                details=details,
            )
        else:
            yield Finding(
                CODE, NAME, Severity.WARNING,
                _("aten::conv3d with groups={groups} and {channels} input channels: grouped three-dimensional convolution is rarely supported by NPU compilers.").format(
                    groups=groups, channels=channels),
                op.location, op.module, _("Should the compiler refuse it, {split}.").format(split=split), details=details,
            )


def split_error(capture: Capture, op: Op) -> float | None:
    """Largest absolute difference between the convolution and one convolution a group, on random data with the model's own weights; None on meta."""
    if not runnable(capture):
        return None
    module = graph_of(capture)
    node = next((n for n in module.graph.nodes if n.name == op.node), None)
    if node is None or len(node.args) < 2:
        return None
    weight, bias = _constant(module, node.args[1]), _constant(module, node.args[2]) if len(node.args) > 2 else None
    if weight is None:
        return None
    generator = torch.Generator().manual_seed(0)
    x = torch.randn([int(s) if isinstance(s, int) else 2 for s in op.inputs[0].shape], generator=generator).to(weight.dtype)
    rest = [*node.args[3:6], *([1, 0, 1][len(node.args[3:6]):])]
    groups = int(op.scalars["groups"])
    axis = 1 if x.ndim == 5 else 0
    with torch.no_grad():
        whole = functional.conv3d(x, weight, bias, *rest, groups)  # type: ignore[call-overload]
        biases = bias.chunk(groups) if bias is not None else [None] * groups
        parts = [functional.conv3d(p, w, b, *rest) for p, w, b in zip(x.chunk(groups, axis), weight.chunk(groups), biases, strict=True)]  # type: ignore[arg-type]
        return float((torch.cat(parts, axis) - whole).abs().max())


def _constant(module: torch.fx.GraphModule, node: object) -> torch.Tensor | None:
    from npulift.graphs import attribute

    return attribute(module, node)
