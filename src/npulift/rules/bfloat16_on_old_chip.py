"""NPU304 bfloat16-on-old-chip: the model computes in bfloat16 on a chip that has none.

Why it hurts: Ascend 910A and 310P have no bfloat16 in their AI Core: operators stop with an unsupported dtype (DT_BFLOAT16) or fall back.
Ethos-U computes in integers alone.
Bad:   model.bfloat16()
Good:  model.half() with float32 norms and softmax, and a loss scaler for training
"""

from __future__ import annotations

from collections.abc import Iterator

from npulift.capture import Capture
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.rules.families import family, lacks_bfloat16
from npulift.targets.base import Target

CODE = "NPU304"
NAME = "bfloat16-on-old-chip"


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding, at the first operator in bfloat16."""
    if not lacks_bfloat16(target) and family(target) != "ethos-u":
        return
    ops = [o for o in capture.exported_ops or capture.eager_ops if any(t.dtype == "bfloat16" for t in (*o.inputs, *o.outputs))]
    if ops:
        yield Finding(
            CODE, NAME, Severity.ERROR,
            _("{n} operators compute in bfloat16, from {name} on; {target} has no bfloat16 arithmetic.").format(n=len(ops), name=ops[0].base, target=target.name),
            ops[0].location, ops[0].module,
            _("Use float16 (with norms, softmax and loss in float32, and a loss scaler when training), or a chip of the 910B generation or later."),
            details={"operators": len(ops)},
        )
