"""NPU211 dim-not-symbolic: a dimension that should vary is fixed in the exported program.

Why it hurts: the program then works for the example's size only. Sizes of 1 (and 0) are special for broadcasting, so tracing with an example batch of 1 can pin the batch; newer torch stops
with "Constraints violated", older ones export a fixed size without a word.
Bad:   example_inputs = (torch.randn(1, 3, 224, 224),) with a dynamic batch
Good:  example_inputs = (torch.randn(2, 3, 224, 224),): export with 2, then serve 1 as well
Source: pytorch/pytorch issue 149065.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from npulift import graphs
from npulift.capture import Capture
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.rules.declared import dim_line
from npulift.targets.base import Target

CODE = "NPU211"
NAME = "dim-not-symbolic"


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for each axis that was asked to vary and is not symbolic in the exported program, whatever the version of torch."""
    if not capture.spec.dynamic_dims or (capture.exported is None and "onstraint" not in capture.export_error and "dynamic" not in capture.export_error):
        return
    shapes = _shapes(capture)
    for position, axes in capture.spec.dynamic_dims.items():
        for axis, dim in axes.items():
            size = shapes[position][axis] if position < len(shapes) and axis < len(shapes[position]) else None
            example = int(capture.spec.inputs[position].shape[axis])
            if size is not None and not isinstance(size, int):
                continue
            violated = "Constraints violated" in capture.export_error and f"({dim.name}" in capture.export_error
            if size is None and not violated:
                continue
            one = example in (0, 1)
            works = exports_with_two(capture) if one else None
            message = _("Axis {axis} of input {position} ({name}) was asked to vary, but is fixed to {example} in the exported program.").format(
                axis=axis, position=position, name=dim.name, example=example)
            if one:
                message += " " + _("The example has size {example} there, and sizes 0 and 1 are specialised (0/1 specialisation).").format(example=example)
            elif capture.export_error:
                message += " " + _("torch.export says: {reason}").format(reason=capture.export_error.splitlines()[0][:300])
            fix = _("Export with an example size of 2 or more on this axis, then serve 1 as well.") if one else _(
                "The code fixes this size somewhere (a reshape with a number, a comparison with a size); write it in terms of x.shape, or drop the dynamic dim.")
            if works:
                fix += " " + _("Tried here: with an example size of 2 the dim is symbolic.")
            yield Finding(CODE, NAME, Severity.ERROR, message, dim_line(capture, dim.name), "", fix,
                          details={"input": position, "axis": axis, "dim": dim.name, "example_size": example, "symbolic_with_2": works})


def _shapes(capture: Capture) -> list[tuple[Any, ...]]:
    if capture.exported is None:
        return []
    nodes = {n.name: n for n in capture.exported.graph.nodes if n.op == "placeholder"}
    return [tuple(getattr(nodes[str(n)].meta.get("val"), "shape", ())) if str(n) in nodes else () for n in capture.exported.graph_signature.user_inputs]


def exports_with_two(capture: Capture) -> bool | None:
    """Whether every dynamic dim is symbolic once the example has size 2 where it had 0 or 1."""
    inputs = list(capture.spec.inputs)
    for position, axes in capture.spec.dynamic_dims.items():
        for axis in axes:
            if inputs[position].shape[axis] == 1:
                inputs[position] = torch.cat([inputs[position]] * 2, axis)
            elif inputs[position].shape[axis] == 0:
                shape = list(inputs[position].shape)
                shape[axis] = 2
                inputs[position] = inputs[position].new_zeros(shape)
    try:
        program = graphs.export(replace(capture.spec, inputs=tuple(inputs)))
    except Exception:  # whatever torch says, it does not work
        return False
    again = replace(capture, exported=program)
    return all(not isinstance(_shapes(again)[p][a], int) for p, axes in capture.spec.dynamic_dims.items() for a in axes)
