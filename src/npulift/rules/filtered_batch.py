"""NPU224 filtered-batch: a batch whose size depends on data goes into attention.

Why it hurts: the size is known at run time only, so a static NPU cannot compile the attention behind it; torch.export of some versions stops at the test of the mask's shape (a guard on Eq(u0, 1)).
Bad:   q = q[keep]; mask = mask[keep]; F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
Good:  run attention on the whole batch and mask the rows that were dropped: torch.where(keep[:, None, None, None], out, 0)
Source: pytorch/pytorch PR 181084.
"""

from __future__ import annotations

from collections.abc import Iterator

from npulift.capture import Capture
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.rules.families import compiles_static_shapes, is_npu
from npulift.targets.base import Target

CODE = "NPU224"
NAME = "filtered-batch"
_ATTENTION = ("aten::scaled_dot_product_attention", "aten::softmax", "aten::_softmax", "aten::bmm", "aten::matmul")


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding, at the first attention that takes a size from data."""
    ops = [o for o in capture.exported_ops if o.base in _ATTENTION and any(isinstance(s, str) and s.startswith("u") for t in o.inputs for s in t.shape[:1])]
    fused = [o for o in ops if o.base.startswith("aten::scaled")]
    softmax = [o for o in ops if "softmax" in o.base]
    if not fused and not softmax:
        failed = "scaled_dot_product" in capture.export_error and "Eq(u" in capture.export_error
        if not failed:
            return
    op = next(iter(fused or softmax), None)
    shape = list(op.inputs[0].shape) if op else []
    exported = _("this torch exports it, but the batch stays dynamic") if capture.exported is not None and not capture.draft else _("torch.export stops there")
    yield Finding(
        CODE, NAME, Severity.ERROR if compiles_static_shapes(target) else Severity.WARNING if is_npu(target) else Severity.INFO,
        _("The batch that enters attention ({name}, shape {shape}) was filtered by a mask, so its size depends on data (unbacked): {exported}.").format(
            name=op.base if op else "aten::scaled_dot_product_attention", shape=shape, exported=exported),
        op.location if op else None, op.module if op else "",
        _("Do not filter before attention: compute the whole batch and mask the dropped entries afterwards, torch.where(keep[:, None, None, None], out, 0); each row of a batch is independent."),
        details={"operator": op.base if op else "", "shape": shape},
    )
