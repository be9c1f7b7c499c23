"""NPU146 erf-island: erf, alone or as GELU spelled by hand.

Why it hurts: Qualcomm's HTP has Gelu but no Erf, so each erf is computed on the CPU and cuts the graph: two copies across the border and a split program. Other
compilers fuse nn.GELU and not its spelling.
Bad:   h * (torch.erf(h / math.sqrt(2)) + 1.0) * 0.5
Good:  torch.nn.functional.gelu(h)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from npulift.capture import Capture
from npulift.findings import Finding, Severity
from npulift.messages import _, ngettext
from npulift.precision.values import graph_of
from npulift.rules.families import family, is_npu
from npulift.targets.base import Target

CODE = "NPU146"
NAME = "erf-island"
_MUL = (torch.ops.aten.mul.Tensor, torch.ops.aten.mul.Scalar)
_ADD = (torch.ops.aten.add.Tensor, torch.ops.aten.add.Scalar)
_DIV = (torch.ops.aten.div.Tensor, torch.ops.aten.div.Scalar)


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for GELU spelled with erf, one for any other erf."""
    ops = [o for o in capture.exported_ops or capture.eager_ops if o.base in ("aten::erf", "aten::special_erf")]
    if not ops:
        return
    nodes = {n.name: n for n in graph_of(capture).graph.nodes} if capture.exported is not None and not capture.draft else {}
    spelled = [o for o in ops if o.node in nodes and gelu_end(nodes[o.node]) is not None]
    other = [o for o in ops if o not in spelled]
    qnn = family(target) == "qnn"
    severity = Severity.WARNING if is_npu(target) else Severity.INFO
    if spelled:
        n = len(spelled)
        error = gelu_error()
        message = ngettext("GELU is spelled with aten::erf at {n} place.", "GELU is spelled with aten::erf at {n} places.", n).format(n=n)
        if qnn:
            message += " " + ngettext("Qualcomm's HTP has no Erf: {n} island on the CPU, which F.gelu removes.", "Qualcomm's HTP has no Erf: {n} islands on the CPU, which F.gelu removes.", n).format(n=n)
        yield Finding(
            CODE, NAME, severity, message, spelled[0].location, spelled[0].module,
            _("Write torch.nn.functional.gelu(x) (opset 20 and later have Gelu): equal up to rounding, largest difference {error:.1e}.").format(error=error),
            details={"places": n, "spelling": "gelu", "gelu_max_abs_diff": error, "islands_removed": n if qnn else 0,
                     "lines": sorted({str(o.location) for o in spelled if o.location})},
        )
    if other and is_npu(target):
        n = len(other)
        message = ngettext("aten::erf is computed at {n} place.", "aten::erf is computed at {n} places.", n).format(n=n)
        if qnn:
            message += " " + _("Qualcomm's HTP has no Erf, so the graph is cut there and continues on the CPU.")
        yield Finding(
            CODE, NAME, severity, message, other[0].location, other[0].module,
            _("Replace erf by an accurate supported form (a tanh or rational approximation, or x * erf as part of F.gelu); npulift tune tries one and verifies it."),
            details={"places": n, "spelling": "erf"},
        )


def gelu_end(erf: Node) -> Node | None:
    """The node at which x * (1 + erf(x / sqrt 2)) * 0.5 ends, in any order of its multiplications; None when it is something else."""
    x = _scaled_input(erf.args[0])
    if x is None:
        return None
    plus = _only_user(erf)
    if plus is None or plus.target not in _ADD or 1.0 not in plus.args:
        half = _times(plus, 0.5) if plus is not None else None  # 0.5 * erf + 0.5
        if half is None:
            return None
        plus = _only_user(half[0])
        return _times_node(plus, x) if plus is not None and plus.target in _ADD and 0.5 in plus.args else None
    return _product(plus, {"half": False, "x": False}, x)


def _product(node: Node, had: dict[str, bool], x: Node) -> Node | None:
    """Follow multiplications by 0.5 and by x (or 0.5 x) until both were seen."""
    while not (had["half"] and had["x"]):
        user = _only_user(node)
        if user is None:
            return None
        half = _times(user, 0.5) if user.target in _MUL or user.target in _DIV else None
        if half is not None and not had["half"]:
            had["half"] = True
        elif user.target in _MUL and not had["x"]:
            factor = next((a for a in user.args[:2] if a is not node), None)
            if factor is x:
                had["x"] = True
            elif isinstance(factor, Node) and _times(factor, 0.5) is not None and x in factor.args and not had["half"]:
                had["x"] = had["half"] = True
            else:
                return None
        else:
            return None
        node = user
    return node


def _scaled_input(node: Any) -> Node | None:
    """x, when the node is x / sqrt(2) or x * sqrt(1/2)."""
    if not isinstance(node, Node) or len(node.args) < 2:
        return None
    number = next((a for a in node.args if isinstance(a, float)), None)
    x = next((a for a in node.args if isinstance(a, Node)), None)
    if number is None or x is None:
        return None
    fits = (node.target in _DIV and math.isclose(number, math.sqrt(2), rel_tol=1e-4)) or (node.target in _MUL and math.isclose(number, math.sqrt(0.5), rel_tol=1e-4))
    return x if fits else None


def _times(node: Node, factor: float) -> tuple[Node] | None:
    if node.target in _MUL and factor in node.args:
        return (node,)
    if node.target in _DIV and len(node.args) > 1 and node.args[1] == 1 / factor:
        return (node,)
    return None


def _times_node(plus: Node, x: Node) -> Node | None:
    user = _only_user(plus)
    return user if user is not None and user.target in _MUL and x in user.args else None


def _only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def gelu_error() -> float:
    """Largest absolute difference between F.gelu and its spelling with erf, over -8..8 in float32."""
    x = torch.linspace(-8, 8, 4001)
    return float((torch.nn.functional.gelu(x) - x * (torch.erf(x / math.sqrt(2)) + 1.0) * 0.5).abs().max())


