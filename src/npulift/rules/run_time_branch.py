"""NPU220 run-time-branch: control flow stays in the program (torch.cond, while_loop, scan).

Why it hurts: it becomes If or Loop in ONNX. Support lists name If, but mobile compilers (Rockchip, Ethos-U, Qualcomm) take it only when its condition folds to a constant: "The If will cause the graph
to be a dynamic graph". On Ascend it splits the graph and waits for the host.
Bad:   torch.cond(x.mean() > 0, lambda t: t * 2, lambda t: t - 1, (x,))
Good:  torch.where(x.mean() > 0, x * 2, x - 1), or two models with the choice outside
Source: airockchip/rknn-toolkit2 issue 107.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from npulift.capture import Capture
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.precision.values import graph_of, runnable, values_of
from npulift.rules.families import compiles_static_shapes, family
from npulift.targets.base import Target

CODE = "NPU220"
NAME = "run-time-branch"
CONTROL = ("cond", "while_loop", "scan", "map_impl", "associative_scan")
_SYMBOLS = {"mul": "*", "add": "+", "sub": "-", "div": "/", "gt": ">", "lt": "<", "ge": ">=", "le": "<=", "eq": "==", "ne": "!=", "pow": "**"}


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for each control-flow operator."""
    nodes = {n.name: n for n in graph_of(capture).graph.nodes} if capture.exported is not None and not capture.draft else {}
    for op in capture.exported_ops:
        if op.name not in CONTROL:
            continue
        static = compiles_static_shapes(target)
        who = _("Rockchip, Ethos-U and Qualcomm cannot run it") if static else _("it splits the graph and waits for the host")
        message = _("{name} decides at run time what is computed (ONNX {onnx}); {who}.").format(
            name=op.name if op.name != "cond" else "torch.cond", onnx="If" if op.name == "cond" else "Loop", who=who)
        fix = _("Compute both sides and select with torch.where, or export two models and choose outside.")
        details: dict[str, Any] = {"operator": op.name}
        node = nodes.get(op.node)
        if op.name == "cond" and node is not None:
            equal, text = select_form(capture, node)
            details |= {"where_equal": equal, "where": text}
            if text:
                fix += " " + _("Here: {text}.").format(text=text)
            if equal:
                fix += " " + _("Checked on the example inputs: equal.")
        elif op.name != "cond":
            fix = _("Unroll it to its bound with a mask that keeps what was reached (torch.where), or keep the loop on the host around a fixed step.")
        severity = Severity.ERROR if static and target.name.partition(":")[0] != "openvino" else Severity.WARNING if family(target) != "cpu" else Severity.INFO
        yield Finding(CODE, NAME, severity, message, op.location, op.module, fix, details=details)


def select_form(capture: Capture, node: Node) -> tuple[bool | None, str]:
    """(whether computing both branches and selecting gives the same on the example inputs, the text of it where it is short)."""
    predicate, then, other, operands = node.args[:4]
    module = graph_of(capture)
    branches = [getattr(module, str(b.target), None) for b in (then, other) if isinstance(b, Node)]
    if len(branches) != 2 or not all(isinstance(b, torch.fx.GraphModule) for b in branches):
        return None, ""
    texts = [_branch_text(b, [_text(o) for o in operands]) for b in branches]  # type: ignore[arg-type, union-attr]
    text = f"torch.where({_text(predicate)}, {texts[0]}, {texts[1]})" if all(texts) and _text(predicate) else ""
    if not runnable(capture):
        return None, text
    wanted = [n.name for n in node.users if n.target is operator.getitem] or [node.name]
    values = values_of(capture, [*wanted, *(n.name for n in (predicate, *operands) if isinstance(n, Node))])  # type: ignore[misc]
    try:
        given = [values[o.name] if isinstance(o, Node) else o for o in operands]  # type: ignore[union-attr]
        results = [torch.utils._pytree.tree_leaves(b(*given)) for b in branches]  # type: ignore[misc]
        condition = torch.as_tensor(values[predicate.name])  # type: ignore[union-attr, index]
        selected = [torch.where(condition, a, b) for a, b in zip(*results, strict=True)]
        real = torch.utils._pytree.tree_leaves([values[w] for w in wanted])
        return all(torch.equal(s, r) for s, r in zip(selected, real, strict=True)), text
    except (KeyError, RuntimeError, ValueError, TypeError):
        return None, text


def _branch_text(branch: torch.fx.GraphModule, names: list[str]) -> str:
    inputs = [n for n in branch.graph.nodes if n.op == "placeholder"]
    known = dict(zip(inputs, names, strict=False))
    result = next(n for n in branch.graph.nodes if n.op == "output").args[0]
    leaves = result if isinstance(result, (tuple, list)) else (result,)
    return _text(leaves[0], known) if len(leaves) == 1 else ""


def _text(value: Any, known: dict[Node, str] | None = None, depth: int = 4) -> str:
    """A node as Python would write it, '' when it is too long for one line."""
    if not isinstance(value, Node):
        return repr(value)
    if known and value in known:
        return known[value]
    if value.op == "placeholder":
        return value.name
    packet = getattr(value.target, "_opname", "")
    if value.op != "call_function" or not packet or depth == 0:
        return ""
    parts = [_text(a, known, depth - 1) for a in value.args]
    if not all(parts):
        return ""
    if packet in _SYMBOLS and len(parts) == 2:
        return f"{parts[0]} {_SYMBOLS[packet]} {parts[1]}" if depth == 4 else f"({parts[0]} {_SYMBOLS[packet]} {parts[1]})"
    return f"{parts[0]}.{packet}({', '.join(parts[1:])})"
