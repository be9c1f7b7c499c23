"""NPU311 infinite-mask: an additive mask of -inf goes into attention.

Why it hurts: a row that is masked as a whole is softmax of -inf alone, which is NaN; Ascend's fused attention gives NaN for -inf passed as a bias,
and float16 turns large finite masks (torch.finfo(torch.float32).min) into -inf as well.
Bad:   scores = scores + torch.zeros_like(m).masked_fill(~keep, float('-inf'))
Good:  F.scaled_dot_product_attention(q, k, v, attn_mask=keep), or masked_fill(~keep, torch.finfo(scores.dtype).min)
Mind the polarity: in torch's attention True means keep; in npu_fusion_attention's atten_mask True means hide.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from npulift.capture import Capture, Op
from npulift.findings import Finding, Severity
from npulift.messages import _, ngettext
from npulift.precision.values import values_of
from npulift.rules.families import family
from npulift.targets.base import Target

CODE = "NPU311"
NAME = "infinite-mask"
_MAKERS = ("aten::masked_fill", "aten::masked_fill_", "aten::where", "aten::full", "aten::full_like", "aten::scalar_tensor", "aten::fill", "aten::fill_", "aten::triu")
_SOFTMAX = ("aten::softmax", "aten::_softmax", "aten::scaled_dot_product_attention")


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for each line that makes -inf, where softmax or attention follows."""
    ops = capture.exported_ops or capture.eager_ops
    softmax = [o for o in ops if o.base in _SOFTMAX]
    if not softmax:
        return
    makers = [o for o in ops if o.base in _MAKERS and any(v in ("-inf", "-Infinity") for v in o.scalars.values())]
    values = values_of(capture, [o.node for o in softmax] + [n for o in softmax for n in _inputs(capture, o)])
    rows, proof = _masked_rows(capture, softmax, values)
    if not makers:
        if not rows:
            return
        makers = [softmax[0]]
    seen = set()
    for op in makers:
        if op.location in seen:
            continue
        seen.add(op.location)
        message = _("{name} puts -inf into a mask that is added before softmax.").format(name=op.base)
        details: dict[str, Any] = {"operator": op.base, "fully_masked_rows": rows[:20], "proven": bool(rows)}
        if rows:
            message += " " + ngettext(
                "On the example inputs {n} row is masked as a whole (first: row {row}) and becomes NaN: softmax of -inf alone.",
                "On the example inputs {n} rows are masked as a whole (first: row {row}) and become NaN: softmax of -inf alone.", len(rows)).format(
                n=len(rows), row=rows[0][-1])
            details["nan_values"] = proof
        else:
            message += " " + _("No row of the example inputs is masked as a whole, but a row that were would become NaN.")
        fix = _("Mask with a boolean attn_mask, or with a finite torch.finfo(dtype).min, and avoid rows that are masked as a whole.")
        if family(target) == "ascend":
            fix += " " + _("For npu_fusion_attention pass a bool atten_mask, where True means masked: the inverse of scaled_dot_product_attention's attn_mask, "
                           "where True means keep; never pass -inf as pse.")
        else:
            fix += " " + _("Mind the polarity: True means keep in scaled_dot_product_attention, but hide in npu_fusion_attention.")
        yield Finding(CODE, NAME, Severity.ERROR if rows else Severity.WARNING, message, op.location, op.module, fix, details=details)


def _inputs(capture: Capture, op: Op) -> list[str]:
    if capture.exported is None or not op.node:
        return []
    return [a.name for n in capture.exported.graph.nodes if n.name == op.node for a in n.all_input_nodes]


def _masked_rows(capture: Capture, softmax: list[Op], values: dict[str, Any]) -> tuple[list[list[int]], int]:
    """(indices of rows that are NaN after softmax though its input has none, number of NaN values)."""
    for op in softmax:
        out = values.get(op.node)
        sources = [values[n] for n in _inputs(capture, op) if isinstance(values.get(n), torch.Tensor)]
        if not isinstance(out, torch.Tensor) or not out.is_floating_point() or not sources or any(bool(torch.isnan(s).any()) for s in sources if s.is_floating_point()):
            continue
        nan = torch.isnan(out)
        if bool(nan.any()):
            return [list(map(int, r)) for r in nan.all(-1).nonzero()], int(nan.sum())
    return [], 0
