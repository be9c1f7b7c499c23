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
from npulift.targets.base import Target

CODE = "NPU203"
NAME = "host-sync"
SEVERITY = Severity.WARNING


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for each line that reads a value back."""
    for spot in capture.data_dependent:
        if spot.kind == "value":
            yield Finding(
                CODE, NAME, SEVERITY,
                _("A value is read back to the host here ({operator}): the device's queue drains and the graph cannot be one piece.").format(
                    operator=spot.operator or spot.expression
                ),
                spot.location, spot.module,
                _("Keep the value on the device: use tensor operations (clamp, where, amax) instead of .item() and Python numbers."),
                details={"operator": spot.operator},
            )
