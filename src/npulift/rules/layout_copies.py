"""NPU402 layout-copies: much of the memory traffic is copies that only change the layout.

Why it hurts: .contiguous(), and reshape or flatten of a transposed tensor, copy every byte. On an NPU that is bandwidth that computes nothing (TransData, Transpose, InplaceCopy).
Bad:   x.transpose(1, 2).contiguous().view(...) between every two operators
Good:  keep one layout through the block, fold the permutation into a weight, or use an operator that takes the other layout
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from npulift.capture import Capture
from npulift.findings import Finding, Severity
from npulift.measured import Kind
from npulift.messages import _, ngettext
from npulift.rules.families import is_npu
from npulift.targets.base import Target

CODE = "NPU402"
NAME = "layout-copies"
SHARE = 0.15  # of all bytes moved


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for the model, at the line with the most bytes."""
    if not is_npu(target):
        return
    copies = [o for o in capture.eager_ops if o.base in ("aten::clone", "aten::contiguous", "aten::copy_") and any(t.layout == "strided" for t in o.inputs)
              and (o.bytes_written or 0) >= 65536]
    total = sum((o.bytes_read or 0) + (o.bytes_written or 0) for o in capture.eager_ops)
    moved = sum((o.bytes_read or 0) + (o.bytes_written or 0) for o in copies)
    if not copies or moved < SHARE * total:
        return
    lines: Counter[object] = Counter()
    for op in copies:
        lines[op.location] += op.bytes_written or 0
    worst = max(copies, key=lambda o: lines[o.location])
    weights = [(o, target.weight(o) or 0.0) for o in capture.eager_ops]
    whole = sum(w for _o, w in weights)
    chosen = {id(o) for o in copies}
    share = sum(w for o, w in weights if id(o) in chosen) / whole if whole else None
    n = len(copies)
    yield Finding(
        CODE, NAME, Severity.INFO,
        ngettext("{n} copy only changes the layout: {moved:.1f} of {total:.1f} MB moved ({share:.0%}).", "{n} copies only change the layout: {moved:.1f} of {total:.1f} MB moved ({share:.0%}).",
                 n).format(n=n, moved=moved / 1e6, total=total / 1e6, share=moved / total),
        worst.location, worst.module,
        _("Keep one layout through the block, or fold the permutation into the weights before or after it."), share, Kind.PREDICTED if share is not None else None,
        details={"copies": n, "bytes": moved, "total_bytes": total, "lines": [str(k) for k, _v in lines.most_common(10)]},
    )
