"""ADV019 unaligned-matmul: a matrix product's inner dimension is not aligned.

The cube unit works on blocks of 16 elements, and memory on lines of 256 bytes and more; an odd inner size wastes a part of each.
Threshold: 16-bit products over 50 us long whose inner or outer size is over 64 and no multiple of 16 take over 3 % of kernel time.
Saving: the padding's share, at least; an estimate of a tenth of their time where rows are not 512-byte aligned.
Change: pad the vocabulary, hidden or head size to a multiple of 16 (better 128).
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, percent

CODE = "ADV019"
NAME = "unaligned-matmul"


def find(view: View) -> Iterator[Finding]:
    """By shape."""
    rows = view.kernels.filter(pl.col("type").fill_null("").str.contains("MatMul") & (pl.col("duration_ns") > 50_000) & pl.col("input_shapes").is_not_null() & pl.col("input_dtypes").fill_null("").str.contains("float16"))
    if rows.is_empty():
        return
    shapes = rows.group_by("type", "input_shapes").agg(count=pl.len(), ns=pl.col("duration_ns").sum()).sort("ns", descending=True)
    odd = []
    for r in shapes.iter_rows(named=True):
        sizes = {int(x) for operand in r["input_shapes"].split(";")[:2] for x in operand.split(",")[-2:] if x.isdigit()}
        bad = sorted(x for x in sizes if x > 64 and x % 16)
        if bad:
            odd.append({**r, "sizes": bad})
    total = sum(r["ns"] for r in odd)
    if not odd or total < 0.03 * view.kernel_ns:
        return
    top = odd[0]
    yield found(
        view, (CODE, NAME), Severity.WARNING,
        _("{type} [{shape}] x{count} has a size of {sizes}, which is no multiple of 16; such products take {share} % of the device's time.").format(
            type=top["type"], shape=top["input_shapes"], count=top["count"], sizes=", ".join(map(str, top["sizes"])), share=percent(total / view.kernel_ns)),
        _("Pad that size (vocabulary, hidden, heads) to a multiple of 16, better 128; the extra rows cost less than the misalignment."),
        saved=0.1 * total, share=0.1 * total / view.kernel_ns, details={"shapes": odd[:10], "estimate": True},
    )
