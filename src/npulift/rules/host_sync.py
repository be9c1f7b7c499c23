"""NPU203 host-sync: a value is read back to the host inside forward().

Why it hurts: the NPU's queue must drain before Python can go on, and the graph cannot be compiled in one piece.
Bad:   scale = x.abs().max().item(); y = x / max(scale, 1.0)
Good:  y = x / x.abs().amax().clamp(min=1.0)
"""

from __future__ import annotations

from collections.abc import Iterator

from npulift.capture import Capture
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.rules.data_branch import advice, is_branch, rewrite_at
from npulift.targets.base import Target

CODE = "NPU203"
NAME = "host-sync"
SEVERITY = Severity.WARNING


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for each line that reads a value back; a line that branches on it is NPU221's."""
    branches = {s.location and (s.location.file, s.location.line) for s in capture.data_dependent if is_branch(capture, s)}
    for spot in capture.data_dependent:
        if spot.kind != "value" or (spot.location and (spot.location.file, spot.location.line)) in branches:
            continue
        reads = [o for o in capture.eager_ops if o.name == spot.operator and o.location == spot.location]
        count, inner = len(reads), next((o.call for o in reads if o.call != o.location), None)
        fix, details = advice(rewrite_at(capture, spot), _("Keep the value on the device: use tensor operations (clamp, where, amax) instead of .item() and Python numbers."))
        yield Finding(
            CODE, NAME, SEVERITY,
            _("A value is read back to the host here ({operator}): the device's queue drains and the graph cannot be one piece.").format(
                operator=spot.operator or spot.expression
            ) + (" " + _("A library does it, at {place}.").format(place=inner) if inner else ""),
            spot.location, spot.module, fix, details={"operator": spot.operator, "times": count, "inside": str(inner) if inner else None, **details},
        )
