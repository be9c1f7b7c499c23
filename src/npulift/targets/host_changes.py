"""Changes of the runtimes of this machine's CPU: precision, layout of the input, threads and streams. Yielded most valuable first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from npulift.capture import Capture
from npulift.changes import Change, Variant
from npulift.messages import _


def host_changes(capture: Capture, variant: Variant, target: str) -> Iterator[Change]:
    """What may be tried on the runtime named, from whatever variant it is applied to."""
    weights = sum(op.flops or 0 for op in capture.exported_ops if op.base in _WEIGHTED)
    total = sum(op.flops or 0 for op in capture.exported_ops) or 1
    share = weights / total
    convolutions = sum(1 for op in capture.exported_ops if "conv" in op.base)
    if weights:
        # Half the time of the operators with weights; less where attention and norms lie between them.
        gain = share * (0.5 if convolutions > 4 else 0.2)
        attention = any(op.base in _ATTENTION for op in capture.exported_ops)
        yield Change("int8", _("Quantise to int8 after training, with the calibration samples ({target}).").format(target=target), gain,
                     partial(_set, target, precision="int8", transformer=attention or None), exact=False, key=target)
        if target.startswith("openvino") and not attention:
            yield Change("int8-asymmetric", _("Quantise to int8 with asymmetric activations ({target}).").format(target=target), gain * 0.9,
                         partial(_set, target, precision="int8", preset="mixed"), exact=False, key=target)
    if target.startswith("openvino"):
        capabilities = _capabilities(target)
        for precision, name in (("bf16", "BF16"), ("f16", "FP16")):
            if name in capabilities:
                yield Change("low-precision", _("Compute in {precision}.").format(precision=precision), share * 0.3,
                             partial(_set, target, float=precision), exact=False, key=f"{precision}@{target}")
        nhwc = [i for i, t in enumerate(capture.spec.tensors) if t.ndim == 4 and t.shape[1] in (1, 3, 4)]
        if nhwc and convolutions:
            yield Change("channels-last-input", _("Take images channels-last, so that no transpose is needed at the border."), 0.02,
                         partial(_set, target, nhwc=nhwc), key=target)
    if (os.cpu_count() or 1) > 1:
        yield Change("threads-and-streams", _("Search the number of threads and streams."), 0.04, partial(_set, target), key=target)


_WEIGHTED = {"aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::conv_transpose2d", "aten::linear", "aten::matmul", "aten::addmm", "aten::mm", "aten::convolution"}


_ATTENTION = {"aten::scaled_dot_product_attention", "aten::softmax", "aten::_softmax"}


def _capabilities(target: str) -> tuple[str, ...]:
    import openvino as ov

    device = target.partition(":")[2] or "CPU"
    try:
        return tuple(ov.Core().get_property(device, "OPTIMIZATION_CAPABILITIES"))
    except RuntimeError:
        return ()


def _set(target: str, variant: Variant, **options: Any) -> Variant:
    """The variant on this runtime with the options on top; options of another runtime are left behind."""
    kept = variant.options if variant.target == target else {}
    return replace(variant, target=target, options=dict(kept)).with_options(**options)
