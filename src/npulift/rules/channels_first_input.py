"""NPU400 channels-first-input: the image comes channels-first to hardware that computes channels-last.

Why it hurts: Ethos-U keeps NHWC, so an NCHW input is transposed at the edge of the graph, and views that mix the channel axis add further transposes. The report still says
that every operator is on the NPU, while the U55 transposes slowly.
Bad:   export(model, (torch.randn(1, 3, 224, 224),))
Good:  model = model.to(memory_format=torch.channels_last); x = x.to(memory_format=torch.channels_last)
Source: pytorch/executorch issue 17157.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from npulift.capture import Capture
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.rules.families import family
from npulift.targets.base import Target

CODE = "NPU400"
NAME = "channels-first-input"
_IMAGE = {f"aten::{n}" for n in ("conv2d", "convolution", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "conv_transpose2d")}


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for each 4-d input that is contiguous NCHW, in a model with image operators."""
    if family(target) != "ethos-u":
        return
    image = next((o for o in capture.exported_ops or capture.eager_ops if o.base in _IMAGE), None)
    if image is None:
        return
    for position, value in enumerate(capture.spec.inputs):
        if not isinstance(value, torch.Tensor) or value.ndim != 4 or value.shape[1] == 1 or value.is_contiguous(memory_format=torch.channels_last):
            continue
        yield Finding(
            CODE, NAME, Severity.WARNING,
            _("Input {position} is {shape} in NCHW (contiguous) memory, but Ethos-U computes in NHWC: a transpose at the edge of the graph.").format(position=position, shape=list(value.shape)),
            image.location, image.module,
            _("Give the example input channels-last: x.to(memory_format=torch.channels_last), and model.to(memory_format=torch.channels_last); avoid views that change the channel axis."),
            details={"input": position, "shape": list(value.shape), "layout": "contiguous"},
        )
