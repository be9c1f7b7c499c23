"""NPU106 scatter-and-index: values are gathered or scattered one by one.

Why it hurts: the vector units want contiguous blocks. Scatter, index_put, index_add and advanced indexing move single elements, often on the AI CPU (Ascend) or outside the
delegated graph (Ethos-U, Qualcomm), and with accumulation they run in sequence.
Bad:   out.scatter_add_(0, index.expand_as(src), src)
Good:  a one-hot matrix product for few rows (onehot.T @ src), index_select for whole rows, or torch.where with a mask
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from npulift.capture import Capture, Op
from npulift.findings import Finding, Severity
from npulift.measured import Kind
from npulift.messages import _, ngettext
from npulift.rewriting import cost_share
from npulift.rules.families import is_npu
from npulift.targets.base import Target

CODE = "NPU106"
NAME = "scatter-and-index"
SCATTER = {
    f"aten::{n}{s}" for n in ("scatter", "scatter_add", "scatter_reduce", "index_put", "index_add", "index_copy", "index_fill", "masked_scatter") for s in ("", "_")
}


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for each line that scatters, or indexes with tensors along more than one axis."""
    if not is_npu(target):
        return
    lines: dict[object, list[Op]] = {}
    for op in capture.exported_ops or capture.eager_ops:
        if op.base in SCATTER or (op.base in ("aten::index", "aten::gather") and _large_index(op)):
            lines.setdefault(op.location, []).append(op)
    for ops in lines.values():
        names, n = Counter(o.base for o in ops), len(ops)
        if any(isinstance(s, str) and s.startswith("u") for o in ops for t in o.inputs for s in t.shape):
            continue  # its size depends on data: NPU222 and NPU223 speak of it
        share = cost_share(capture, {o.node for o in ops}, target) if capture.exported_ops else None
        yield Finding(
            CODE, NAME, Severity.INFO,
            ngettext("{n} operator moves single elements ({names}); NPUs do so slowly or on the CPU.", "{n} operators move single elements ({names}); NPUs do so slowly or on the CPU.",
                     n).format(n=n, names=", ".join(names)),
            ops[0].location, ops[0].module,
            _("Where the index is constant use slices or index_select; for few rows a product with a one-hot matrix; for conditions torch.where."),
            share, Kind.PREDICTED if share is not None else None, details={"operators": dict(names)},
        )


def _large_index(op: Op) -> bool:
    """Advanced indexing with integer tensors of more than 4,096 elements (a lookup of a few rows costs nothing)."""
    return any(t.dtype in ("int64", "int32") and (t.numel or 0) > 4096 for t in op.inputs[1:])
