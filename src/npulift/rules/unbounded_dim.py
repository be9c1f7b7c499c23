"""NPU210 unbounded-dim: a dimension that varies and has no upper bound.

Why it hurts: a compiler for a static NPU has to reserve memory for the largest size. Without a bound it sees 9223372036854775807, which is INT64_MAX and stands for 'no bound',
and stops ("Upper bounds were not specified", "to_shape was called on a dynamic shape").
Bad:   torch.export.Dim('batch')
Good:  torch.export.Dim('batch', max=16), or one compiled size for each bucket: npulift compile --bucket
Source: openvinotoolkit/openvino issues 32466 and 34617.
"""

from __future__ import annotations

from collections.abc import Iterator

from npulift.capture import Capture
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.rules.declared import dim_line
from npulift.rules.families import compiles_static_shapes, family
from npulift.targets.base import Target

CODE = "NPU210"
NAME = "unbounded-dim"


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for each unbounded axis of an input; the bounded ones are named in it."""
    if family(target) in ("cpu", "onnxruntime"):
        return
    dims = [(i, axis, dim) for i, axes in capture.spec.dynamic_dims.items() for axis, dim in axes.items()]
    bounded = [(i, axis, dim) for i, axis, dim in dims if dim.high is not None]
    severity = Severity.ERROR if compiles_static_shapes(target) else Severity.WARNING if family(target) == "ascend" else Severity.INFO
    for position, axis, dim in dims:
        if dim.high is not None:
            continue
        example = capture.spec.inputs[position].shape[axis]
        bound = max(16, 1 << (int(example) * 4 - 1).bit_length())
        message = _("Axis {axis} of input {position} ({name}) has no upper bound: a static NPU compiler sees 9223372036854775807, which is INT64_MAX and stands for 'no bound', and stops.").format(
            axis=axis, position=position, name=dim.name)
        if bounded:
            message += " " + _("Bounded and fine: {dims}.").format(
                dims=", ".join(_("axis {axis} of input {position} ({name}, at most {high})").format(axis=a, position=i, name=d.name, high=d.high) for i, a, d in bounded))
        fix = _("Give it a bound, torch.export.Dim('{name}', min={low}, max={bound}), and pad inputs to it; or compile static shapes, one for each size: npulift compile --bucket.").format(
            name=dim.name, low=dim.low, bound=bound)
        if family(target) == "openvino":
            fix += " " + _("OpenVINO 2026.4.1 drops the bounds of an ExportedProgram when it converts it (inputs come out as [?,?], static ones too), so call "
                           "model.reshape() with them after conversion in any case; npulift does.")
        yield Finding(
            CODE, NAME, severity, message, dim_line(capture, dim.name), "", fix,
            details={"input": position, "axis": axis, "dim": dim.name, "lower": dim.low, "upper": None, "int64_max": 9223372036854775807,
                     "bounded": [{"input": i, "axis": a, "dim": d.name, "upper": d.high} for i, a, d in bounded]},
        )
