"""NPU600 train-mode: the model is in train mode.

Why it hurts: dropout is on (other results at every call) and batch norm uses and changes the statistics of the batch; nothing can be folded, compiled or verified.
Bad:   return Model(), inputs
Good:  return Model().eval(), inputs
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn

from npulift.capture import Capture
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.targets.base import Target

CODE = "NPU600"
NAME = "train-mode"


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding, when a module whose behaviour depends on the mode is in train mode."""
    active = {
        name: type(m).__name__ for name, m in capture.spec.module.named_modules()
        if m.training and ((isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0) or isinstance(m, nn.modules.batchnorm._NormBase)
                           or (isinstance(m, nn.RNNBase) and m.dropout > 0) or (isinstance(m, nn.MultiheadAttention) and m.dropout > 0))
    }
    if active:
        kinds = Counter(active.values())
        listed = ", ".join(f"{k} ({n})" if n > 1 else k for k, n in kinds.items())
        first = next(iter(active))
        location = next((o.location for o in capture.exported_ops if o.module == first), None)
        yield Finding(
            CODE, NAME, Severity.WARNING,
            _("The model is in train mode: {kinds} behave differently than in inference, starting with {first}.").format(kinds=listed, first=first),
            location, first, _("Call .eval() before giving the model to npulift or deploying it."), details={"modules": dict(kinds), "first": first},
        )
