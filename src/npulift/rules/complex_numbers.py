"""NPU302 complex-numbers: complex tensors are computed in the model.

Why it hurts: no NPU has complex arithmetic on its matrix or vector units. On Ascend such operators run on the AI CPU or fall back to the host; the
other compilers refuse them.
Bad:   x = torch.view_as_complex(x) * freqs_cis; x = torch.view_as_real(x)
Good:  a, b = x.unbind(-1); x = torch.stack((a * cos - b * sin, a * sin + b * cos), -1)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from npulift.capture import Capture
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.rules.families import family, is_npu
from npulift.targets.base import Target

CODE = "NPU302"
NAME = "complex-numbers"


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for each line that computes with complex numbers."""
    by_line: dict[object, list] = {}
    for op in capture.exported_ops or capture.eager_ops:
        if any(t.dtype.startswith("complex") for t in (*op.inputs, *op.outputs)) and op.base != "aten::_assert_tensor_metadata":
            by_line.setdefault(op.location, []).append(op)
    for ops in by_line.values():
        names = Counter(o.base for o in ops)
        double = any(t.dtype == "complex128" for o in ops for t in (*o.inputs, *o.outputs))
        dtype = "complex128" if double else "complex64"
        fourier = [n for n in names if "fft" in n or n.endswith(("stft", "istft"))]
        fix = _("Compute in real numbers: keep cos and sin (or the real and the imaginary part) apart, "
                "and write (a + bi)(c + di) as (ac - bd, ad + bc).")
        if fourier:
            fix = _("Write the Fourier transform of a fixed length as two matrix products with constant cos and sin matrices, or keep it in the preprocessing.")
        where = _("runs on the AI CPU or the host") if family(target) == "ascend" else _("is refused by the compiler")
        yield Finding(
            CODE, NAME, Severity.WARNING if is_npu(target) else Severity.INFO,
            _("{names} compute in {dtype}, which {where}.").format(names=", ".join(names), dtype=dtype, where=where),
            ops[0].location, ops[0].module, fix, details={"operators": dict(names), "dtype": dtype},
        )
