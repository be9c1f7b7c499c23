"""NPU151 bitwise-not: ~mask, for which a compiler has no builder.

Why it hurts: executorch's Qualcomm partitioner looked up every operator in its table of builders without a test, so versions without a builder for bitwise_not stopped with
KeyError: 'aten.bitwise_not.default' (that is what the KeyError means: an unsupported operator). Ethos-U leaves it, and the comparisons around it, on the CPU.
Bad:   x.masked_fill(~mask, 0.0)
Good:  x.masked_fill(mask == 0, 0.0)
Source: pytorch/executorch PR 21607.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from npulift.capture import Capture
from npulift.findings import Finding, Severity
from npulift.messages import _, ngettext
from npulift.precision.values import graph_of, values_of
from npulift.rules.families import family, installed
from npulift.targets.base import Target

CODE = "NPU151"
NAME = "bitwise-not"


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for each line with a bitwise_not on booleans."""
    kind = family(target)
    if kind not in ("qnn", "ethos-u"):
        return
    lines: dict[object, list] = {}
    for op in capture.exported_ops:
        if op.base in ("aten::bitwise_not", "aten::logical_not") and op.inputs and op.inputs[0].dtype == "bool":
            lines.setdefault(op.location, []).append(op)
    for ops in lines.values():
        n, first = len(ops), ops[0]
        equal = _equal(capture, [o.node for o in ops])
        message = ngettext("{n} {name} on a boolean mask.", "{n} {name} on boolean masks.", n).format(n=n, name=first.base)
        if kind == "qnn":
            message += " " + _("executorch's Qualcomm partitioner has no builder for bitwise_not in older versions and stops with a KeyError, which means nothing but an unsupported operator.")
        else:
            message += " " + _("Ethos-U leaves it on the CPU (seen with executorch 1.5.1), together with the comparison and the where around it.")
        fix = _("Write mask == 0 instead of ~mask.")
        if equal:
            fix += " " + _("Checked on the example inputs: the same values.")
        have = installed("executorch")
        if kind == "qnn":
            fix += " " + _("Or upgrade executorch (here: {version}); npulift's own qnn target goes through ONNX and asks the installed compiler.").format(
                version=".".join(map(str, have)) if have else _("not installed"))
        yield Finding(CODE, NAME, Severity.WARNING, message, first.location, first.module, fix, details={"operator": first.base, "places": n, "equal": equal})


def _equal(capture: Capture, nodes: list[str]) -> bool | None:
    if capture.exported is None or capture.draft:
        return None
    graph = {n.name: n for n in graph_of(capture).graph.nodes}
    pairs = [(graph[name].args[0].name, name) for name in nodes if name in graph and isinstance(graph[name].args[0], torch.fx.Node)]
    values = values_of(capture, [n for pair in pairs for n in pair])
    if not all(a in values and b in values for a, b in pairs):
        return None
    return all(torch.equal(values[a] == 0, values[b]) for a, b in pairs)
