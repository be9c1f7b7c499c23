"""NPU222 data-size: the size of a tensor depends on data (nonzero, masked_select, boolean indexing, unique, repeat_interleave with a tensor).

Why it hurts: the device must finish and tell the host how many there are before it can allocate the result: a synchronisation each time. Every new size is a new shape, so operators are compiled again
(Ascend) or the graph cannot be compiled at all (static NPUs).
Bad:   kept = x[x[:, 0] > 0]; return kept.mean()
Good:  mask = (x[:, 0] > 0)[:, None]; return torch.where(mask, x, 0).sum() / mask.expand_as(x).sum()
`npulift rewrite` writes the mask-and-reduce form where it can verify it, empty selections included.
"""

from __future__ import annotations

from collections.abc import Iterator

from npulift.capture import Capture, Op
from npulift.findings import Finding, Severity
from npulift.messages import _, ngettext
from npulift.rules.data_branch import advice, rewrite_at
from npulift.rules.expert_loop import loops
from npulift.rules.families import compiles_static_shapes, family, is_npu
from npulift.targets.base import Target

CODE = "NPU222"
NAME = "data-size"


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for each line, those of an expert loop left out (NPU223 speaks of it)."""
    skip = {line for loop in loops(capture) for line in loop.lines}
    seen = set()
    for spot in capture.data_dependent:
        key = spot.location and (spot.location.file, spot.location.line)
        if spot.kind != "size" or key in seen or key in skip:
            continue
        seen.add(key)
        ops = sites(capture, spot.operator, key)
        n = max(1, len(ops))
        name = spot.operator.partition(".")[0] or spot.expression
        if compiles_static_shapes(target):
            cost = _("A static NPU cannot compile a size that is known at run time only.")
        elif family(target) == "ascend":
            cost = _("Each call waits for the device, and each new size is a new shape to compile for.")
        else:
            cost = _("Each call waits for the size, and each new size is a new shape.")
        message = ngettext("{name} gives a tensor whose size depends on data (host sync and recompilation, {n} site).",
                           "{name} gives tensors whose size depends on data (host sync and recompilation, {n} sites).", n).format(name=name, n=n) + " " + cost
        fix, details = advice(rewrite_at(capture, spot), _("Keep the full size with a mask and reduce with it (mask and reduce), or pad to a bound (topk, a fixed number of slots)."))
        shape = next((list(t.shape) for o in ops for t in o.outputs), None)
        severity = Severity.ERROR if compiles_static_shapes(target) else Severity.WARNING if is_npu(target) else Severity.INFO
        yield Finding(CODE, NAME, severity, message, spot.location, spot.module, fix, details={"operator": name, "sites": n, "shape": shape, **details})


def sites(capture: Capture, operator: str, key: object) -> list[Op]:
    """The calls of this operator on this line, in the view that has more of them."""
    base = operator.partition(".")[0]
    views = [[o for o in ops if o.base == base and o.location and (o.location.file, o.location.line) == key] for ops in (capture.exported_ops, capture.eager_ops)]
    return max(views, key=len)
