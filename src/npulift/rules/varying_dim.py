"""NPU212 varying-dim: a dimension that varies, on hardware that compiles fixed sizes.

Why it hurts: a static NPU needs one compiled program for each size (or padding up to one); on Ascend every new shape can mean a compilation where operators are compiled
just in time (jit_compile=True, 310P and 910A) and defeats graph mode.
Bad:   serving every sequence length as it comes
Good:  a few buckets with padding: npulift compile --bucket 64,128,256
"""

from __future__ import annotations

from collections.abc import Iterator

from npulift.capture import Capture
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.rules.declared import dim_line
from npulift.rules.families import compiles_static_shapes, family
from npulift.targets.base import Target

CODE = "NPU212"
NAME = "varying-dim"


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for the model, when all its dims have bounds (NPU210 speaks of the others)."""
    static = compiles_static_shapes(target)
    if not static and family(target) != "ascend":
        return
    dims = {d.name: d for axes in capture.spec.dynamic_dims.values() for d in axes.values() if d.high is not None}
    if not dims or any(d.high is None for axes in capture.spec.dynamic_dims.values() for d in axes.values()):
        return
    sizes = 1
    for dim in dims.values():
        sizes *= dim.high - dim.low + 1  # type: ignore[operator]
    listed = ", ".join(f"{d.name} {d.low}..{d.high}" for d in dims.values())
    why = _("{target} compiles fixed sizes: {sizes:,} different shapes would be as many programs.") if static else _(
        "On {target} each of the {sizes:,} possible shapes is new to the operator compiler (jit_compile) and to graph mode.")
    yield Finding(
        CODE, NAME, Severity.WARNING if static and family(target) != "openvino" else Severity.INFO,
        _("Dims vary: {dims}.").format(dims=listed) + " " + why.format(target=target.name, sizes=sizes), dim_line(capture, next(iter(dims))), "",
        _("Pad to a few sizes: npulift compile --bucket auto chooses them and the program picks the nearest at run time."), details={"dims": listed, "shapes": sizes},
    )
