"""NPU303 int64-arithmetic: whole tensors are computed in int64.

Why it hurts: the matrix and vector units have no int64. On Ascend such arithmetic goes to the AI CPU or through slow emulation; mobile compilers cast to
int32 or refuse. Indices that are only looked up (embedding, gather) are not meant.
Bad:   mask = (positions.long() * 7 + offset) % 11
Good:  mask = (positions.int() * 7 + offset) % 11
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from npulift.capture import Capture, Op
from npulift.findings import Finding, Severity
from npulift.messages import _, ngettext
from npulift.rules.families import is_npu
from npulift.targets.base import Target

CODE = "NPU303"
NAME = "int64-arithmetic"

ARITHMETIC = {
    f"aten::{n}" for n in (
        "add", "sub", "rsub", "mul", "div", "floor_divide", "remainder", "fmod", "pow", "cumsum", "sum", "prod", "bitwise_and", "bitwise_or", "bitwise_xor",
        "__and__", "__or__", "__xor__", "__rshift__", "__lshift__", "bitwise_right_shift", "bitwise_left_shift", "mm", "bmm", "matmul", "abs", "neg", "clamp",
        "maximum", "minimum", "sort", "topk",
    )
}
MINIMUM = 1024  # elements; smaller ones cost no more than their launch


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for the model, at the line with the most elements."""
    if not is_npu(target):
        return
    ops = [o for o in capture.exported_ops or capture.eager_ops if o.base in ARITHMETIC and _elements(o) >= MINIMUM]
    if not ops:
        return
    worst = max(ops, key=_elements)
    names = Counter(o.base for o in ops)
    n = len(ops)
    yield Finding(
        CODE, NAME, Severity.INFO,
        ngettext("{n} operator computes in int64 ({names}, up to {elements:,} elements), for which the NPU has no arithmetic units.",
                 "{n} operators compute in int64 ({names}, up to {elements:,} elements), for which the NPU has no arithmetic units.", n).format(
            n=n, names=", ".join(names), elements=_elements(worst)),
        worst.location, worst.module,
        _("Use int32 where the values fit (dtype=torch.int32, .int()), or compute what is constant once when the module is built."),
        details={"operators": dict(names), "lines": sorted({str(o.location) for o in ops if o.location})},
    )


def _elements(op: Op) -> int:
    return max((t.numel or 0 for t in op.inputs if t.dtype == "int64"), default=0) if any(t.dtype == "int64" for t in op.outputs) or op.base == "aten::sort" else 0
