"""NPU401 high-rank: a tensor of more than four dimensions after a layout change, on Ethos-U.

Why it hurts: the hardware works on four dimensions. executorch before 1.5.1 crashed while partitioning when convolution, relu, permute and a five-dimensional reshape came together; 1.5.1 lowers
them (seen here), though views of rank 5 and 6 still cost transposes.
Bad:   y.permute(0, 2, 3, 1).reshape(1, 1, 16, 16, 16).permute(0, 1, 3, 2, 4)
Good:  keep rank 4 in the NPU's graph, and do the five-dimensional view outside of it
Source: pytorch/executorch issue 16739.
"""

from __future__ import annotations

from collections.abc import Iterator

from npulift.capture import Capture
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.rules.families import family, installed
from npulift.targets.base import Target

CODE = "NPU401"
NAME = "high-rank"
LOWERS_SINCE = (1, 5, 1)
_VIEWS = {f"aten::{n}" for n in ("view", "reshape", "permute", "unflatten", "_unsafe_view", "expand", "transpose")}


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for the model, at the first view of rank over 4 behind a convolution."""
    if family(target) != "ethos-u":
        return
    behind = False
    for op in capture.exported_ops:
        behind = behind or op.base in ("aten::conv2d", "aten::convolution", "aten::conv1d")
        rank = max((len(t.shape) for t in op.outputs), default=0)
        if not behind or op.base not in _VIEWS or rank <= 4:
            continue
        have = installed("executorch")
        fine = have is not None and have >= LOWERS_SINCE
        state = _("installed here: {version}").format(version=".".join(map(str, have))) if have else _("executorch is not installed here")
        yield Finding(
            CODE, NAME, Severity.INFO if fine else Severity.WARNING,
            _("{name} makes a tensor of rank {rank} behind a convolution: executorch before 1.5.1 crashed while lowering that; 1.5.1 lowers it wholly ({state}).").format(
                name=op.base, rank=rank, state=state),
            op.location, op.module, _("With an older executorch keep rank 4 or less in the NPU's graph and do this view outside of it, or upgrade."),
            details={"operator": op.base, "rank": rank, "executorch": ".".join(map(str, have)) if have else None},
        )
        return
