"""NPU301 float64-leak: tensors of float64 are computed in the model.

Why it hurts: no NPU here has float64 arithmetic. On Ascend some operators refuse it (repeat_interleave: aclnnRepeatInterleaveIntWithDim, EZ1001,
DT_DOUBLE), others run on the AI CPU or are cast with a warning; other compilers refuse or lower it silently.
Bad:   angle = torch.outer(torch.arange(n, dtype=torch.float64), inv); cos = angle.cos().float()
Good:  compute the table once on the CPU in float64, register_buffer(table.float()), and slice it in forward()
The page of a finding says how far a float32 table is from the float64 one at the model's own positions; the error grows with the position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch

from npulift.capture import Capture, Op
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.precision.values import Demoting, graph_of, inputs_of, runnable
from npulift.rules.families import family, is_npu
from npulift.targets.base import Target

CODE = "NPU301"
NAME = "float64-leak"

# Operators whose aclnn kernel rejects DT_DOUBLE. Source: huggingface/diffusers issues 10123 and 10820 (EZ1001 "not implemented for DT_DOUBLE").
REJECTS_DOUBLE = ("aten::repeat_interleave",)
_SILENT = ("aten::_assert_tensor_metadata", "aten::detach", "aten::alias", "aten::lift_fresh_copy")


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for the model, at the first line that makes float64."""
    ops = [o for o in capture.exported_ops or capture.eager_ops if o.base not in _SILENT and any(t.dtype == "float64" for t in o.outputs)]
    if not ops:
        return
    first = _producer(ops)
    names = Counter(o.base for o in ops)
    rejected = [o for o in ops if o.base in REJECTS_DOUBLE] if family(target) == "ascend" else []
    lines = sorted({str(o.location) for o in ops if o.location})
    details: dict[str, object] = {
        "operators": dict(names), "producer": first.base, "lines": lines, "rejected": sorted({o.base for o in rejected}),
        "inputs_float64": [i for i, v in enumerate(capture.spec.inputs) if isinstance(v, torch.Tensor) and v.dtype is torch.float64],
    }
    message = _("{n} operators compute in float64 ({names}); {producer} makes it first, and the NPU has no float64 arithmetic.").format(
        n=len(ops), names=", ".join(names), producer=first.base)
    if rejected:
        message += " " + _("On Ascend {name} rejects DT_DOUBLE (line {line}): the model stops there.").format(
            name=rejected[0].base, line=rejected[0].location.line if rejected[0].location else "?")
    fix = _("Make the values in float32, or compute them once on the CPU in float64 and keep .float() of them as a buffer.")
    error = _error(capture, ops)
    if error is not None:
        details["float32_max_abs_diff"] = error
        message += " " + _("Computed in float32 instead, the values differ by at most {error:.2e} on the example inputs.").format(error=error)
    if {"aten::sin", "aten::cos"} & set(names):
        at_4096 = rotary_error(4096, 128)
        details["float32_max_abs_diff_at_4096_positions"] = at_4096
        message += " " + _("The difference grows with the position: {error:.1e} at 4,096 positions and 128 channels, so it is not exact.").format(error=at_4096)
    severity = Severity.ERROR if rejected else Severity.WARNING if is_npu(target) else Severity.INFO
    yield Finding(CODE, NAME, severity, message, first.location, first.module, fix, details=details)


def _producer(ops: list[Op]) -> Op:
    return next((o for o in ops if not any(t.dtype == "float64" for t in o.inputs)), ops[0])


def _error(capture: Capture, ops: list[Op]) -> float | None:
    """Largest absolute difference, where float64 ends, between computing in float64 and in float32 on the example inputs."""
    if not runnable(capture):
        return None
    module = graph_of(capture)
    double = {o.node for o in ops}
    borders = {
        n.name for n in module.graph.nodes
        if n.op == "call_function" and n.name not in double and any(a.name in double for a in n.all_input_nodes) and isinstance(n.meta.get("val"), torch.Tensor)
    } or {ops[-1].node}
    try:
        with torch.no_grad():
            runs = []
            for demote in (False, True):
                run = Demoting(module, borders, demote=demote)
                run.run(*inputs_of(capture))
                runs.append(run.kept)
    except Exception:  # the graph may insist on float64 (a typed buffer, an assertion); then there is no estimate
        return None
    errors = [(runs[0][k].double() - runs[1][k].double()).abs().max() for k in borders if runs[0][k].numel() and not runs[0][k].is_complex()]
    return float(max(errors)) if errors else None


def rotary_error(positions: int, channels: int, base: float = 10000.0) -> float:
    """Largest absolute difference between cos and sin of a rotary table computed in float32 and in float64."""
    def table(dtype: torch.dtype) -> torch.Tensor:
        inverse = 1.0 / (base ** (torch.arange(0, channels, 2, dtype=dtype) / channels))
        angle = torch.outer(torch.arange(positions, dtype=dtype), inverse)
        return torch.cat([angle.cos(), angle.sin()], -1).double()

    return float((table(torch.float64) - table(torch.float32)).abs().max())
