"""NPU410 misaligned-matmul: matrix sizes that are no multiple of 16.

Why it hurts: the cube unit of Ascend computes 16x16x16 blocks, so sizes are padded up, and rows that do not start at 32-byte borders are copied first.
Bad:   nn.Linear(768, 50257)
Good:  nn.Linear(768, 50272), with the padding rows never chosen
"""

from __future__ import annotations

from collections.abc import Iterator

from npulift.capture import Capture, Op
from npulift.findings import Finding, Severity
from npulift.measured import Kind
from npulift.messages import _, ngettext
from npulift.rewriting import cost_share
from npulift.rules.families import family
from npulift.targets.base import Target

CODE = "NPU410"
NAME = "misaligned-matmul"
BLOCK = 16
MINIMUM_FLOPS = 1_000_000  # below that the launch costs more than the padding
_PRODUCTS = ("aten::linear", "aten::matmul", "aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm")


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for the model, at the product that wastes most."""
    if family(target) != "ascend":
        return
    found = [(op, sizes) for op in capture.exported_ops if op.base in _PRODUCTS and (op.flops or 0) >= MINIMUM_FLOPS and (sizes := weight_sizes(op)) and any(s % BLOCK for s in sizes)]
    if not found:
        return
    op, sizes = max(found, key=lambda pair: (pair[0].flops or 0) * padding_factor(pair[1]))
    n, factor = len(found), padding_factor(sizes)
    share = cost_share(capture, {o.node for o, _sizes in found}, target)
    padded = [-(-s // BLOCK) * BLOCK for s in sizes]
    yield Finding(
        CODE, NAME, Severity.INFO,
        ngettext("{n} matrix product has sizes that are no multiple of 16 (largest: {name} with {sizes}): the cube computes {padded}, {factor:.2f} times the work, and unaligned rows are copied.",
                 "{n} matrix products have sizes that are no multiple of 16 (largest: {name} with {sizes}): the cube computes {padded}, {factor:.2f} times the work, and unaligned rows are copied.",
                 n).format(n=n, name=op.base, sizes="x".join(map(str, sizes)), padded="x".join(map(str, padded)), factor=factor),
        op.location, op.module,
        _("Round these sizes up to a multiple of 16 (pad the weight with zeros and slice the result)."), share, Kind.PREDICTED if share is not None else None,
        details={"products": n, "sizes": list(sizes), "padded": padded, "work_factor": factor, "lines": sorted({str(o.location) for o, _s in found if o.location})},
    )


def weight_sizes(op: Op) -> tuple[int, int] | None:
    """(K, N) of the product: the reduced and the resulting size; None when they are unknown."""
    if len(op.inputs) < 2 or not op.outputs:
        return None
    second = op.inputs[2].shape if op.base in ("aten::addmm", "aten::baddbmm") and len(op.inputs) > 2 else op.inputs[1].shape
    if len(second) < 2 or not all(isinstance(s, int) for s in second[-2:]):
        return None
    k, n = (second[-1], second[-2]) if op.base == "aten::linear" else (second[-2], second[-1])
    return int(k), int(n)


def padding_factor(sizes: tuple[int, ...]) -> float:
    """Work done over work needed when each size is rounded up to the block."""
    factor = 1.0
    for size in sizes:
        factor *= -(-size // BLOCK) * BLOCK / size
    return factor
