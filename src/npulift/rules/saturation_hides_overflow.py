"""NPU310 saturation-hides-overflow: a test for inf or NaN on half-precision results.

Why it hurts: in saturation mode an overflow in float16 gives 65504, not inf, so isinf, isnan and isfinite never fire and the error goes on unseen.
910A knows only that mode and 310P starts in it; 910B (A2) and later start in INF/NAN mode.
Bad:   y = (x.half() * 3000) ** 2; if torch.isinf(y).any(): ...
Good:  set INF_NAN_MODE_ENABLE=1 where the chip has it, or compute what may overflow in float32 and test that
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from npulift.capture import Capture, Op
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.precision.values import Watching, graph_of, inputs_of, runnable
from npulift.rules.families import family, saturates_by_default
from npulift.targets.base import Target

CODE = "NPU310"
NAME = "saturation-hides-overflow"
TESTS = ("aten::isinf", "aten::isnan", "aten::isfinite", "aten::isposinf", "aten::isneginf", "aten::_amp_foreach_non_finite_check_and_unscale_")


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for each test of a float16 value."""
    if family(target) != "ascend":
        return
    saturates = saturates_by_default(target)
    for op in _tests(capture):
        values = _both_modes(capture, op)
        details: dict[str, Any] = {
            "operator": op.base, "switch": "INF_NAN_MODE_ENABLE", "chip_default": "saturation" if saturates else "inf-nan", **(values or {}),
        }
        default = _("{target} starts in saturation mode, so the test stays silent unless the switch is set").format(target=target.name) if saturates else _(
            "{target} starts in INF/NAN mode; with INF_NAN_MODE_ENABLE=0 the test would go silent").format(target=target.name)
        message = _("{name} tests a float16 result, and its answer depends on the overflow mode: INF/NAN mode gives inf, saturation mode 65504. {default}.").format(
            name=op.base, default=default)
        differs = values is not None and values["inf_nan"] != values["saturation"]
        if differs:
            message += " " + _("On the example inputs (simulated on the CPU): {normal} with INF/NAN mode, {saturated} with saturation.").format(
                normal=_fires(values["inf_nan"]), saturated=_fires(values["saturation"]))  # type: ignore[index]
        severity = Severity.ERROR if differs and saturates else Severity.WARNING
        yield Finding(
            CODE, NAME, severity, message, op.location, op.module,
            _("Set INF_NAN_MODE_ENABLE=1 (the default of 910B and later; 910A has saturation only, read its overflow flag with torch_npu there), "
              "or compute what may overflow in float32."), details=details,
        )


def _fires(fires: bool) -> str:
    return _("the test fires") if fires else _("the test is silent")


def _tests(capture: Capture) -> list[Op]:
    ops = [o for o in capture.exported_ops or capture.eager_ops if o.base in TESTS and any(t.dtype == "float16" for t in o.inputs)]
    if ops:
        return ops
    # isinf and isnan are spelled by comparisons once they are decomposed: abs(x) == inf, x != x.
    return [
        o for o in capture.eager_ops if not capture.exported_ops and o.base in ("aten::eq", "aten::ne") and any(t.dtype == "float16" for t in o.inputs)
        and ("inf" in "".join(o.scalars.values()) or (o.base == "aten::ne" and len(o.inputs) == 2))
    ]


def _both_modes(capture: Capture, op: Op) -> dict[str, Any] | None:
    """{'inf_nan', 'saturation'}: does the test find anything on the example inputs, in the two modes; 'largest': the value tested, as float16 holds it."""
    if not runnable(capture) or not op.node:
        return None
    result: dict[str, Any] = {}
    for mode in ("inf_nan", "saturation"):
        def watch(node: torch.fx.Node, value: Any, mode: str = mode) -> Any:
            if node.name == op.node and isinstance(value, torch.Tensor):
                result[mode] = bool((~value if op.base == "aten::isfinite" else value).any())
            if mode == "saturation" and isinstance(value, torch.Tensor) and value.dtype is torch.float16 and node.op == "call_function":
                return value.clamp(-65504, 65504)
            return None

        try:
            with torch.no_grad():
                Watching(graph_of(capture), watch).run(*inputs_of(capture))
        except Exception:  # no evidence then
            return None
    return result if len(result) == 2 else None
