"""What may be tried for the Qualcomm NPU alone: the form of erf, precision, and the compiler's own optimisation."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from npulift.capture import Capture
from npulift.changes import Change, Variant
from npulift.messages import _

_WEIGHTED = {
    "aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::conv_transpose2d", "aten::convolution", "aten::linear", "aten::matmul", "aten::addmm", "aten::mm",
}


def qnn_changes(capture: Capture, variant: Variant) -> Iterator[Change]:
    """Most valuable first."""
    bases = {op.base for op in capture.exported_ops}
    if "aten::erf" in bases:
        yield Change("erf-by-exponential", _("Compute erf by exponential and division, accurate to 1.5e-7: the chip has no Erf."), 0.6,
                     partial(_set, erf="exponential"))
    total = sum(op.flops or 0 for op in capture.exported_ops) or 1
    share = sum(op.flops or 0 for op in capture.exported_ops if op.base in _WEIGHTED) / total
    if share:
        yield Change("int8", _("Quantise to int8 after training, with the calibration samples."), 0.45 * share, partial(_set, precision="int8"), exact=False)
        yield Change("int16", _("Quantise activations to 16 bits and weights to 8."), 0.2 * share, partial(_set, precision="int16"), exact=False)
    yield Change("finalize-most", _("Let the compiler optimise longest (finalization mode 3)."), 0.05, partial(_set, finalize="3"))


def _set(variant: Variant, **options: Any) -> Variant | None:
    if options.get("precision") and variant.options.get("precision", "float") != "float":
        return None
    return variant.with_options(**options)
