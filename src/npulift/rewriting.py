"""Rewrite: a change of the exported graph, stated as what it matches and what it puts there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from npulift import graphs
from npulift.capture import Capture
from npulift.changes import Change, Variant
from npulift.findings import Finding, Severity
from npulift.measured import Kind
from npulift.messages import _, ngettext
from npulift.targets.base import Target


@dataclass(frozen=True)
class Rewrite:
    """A graph rewrite.

    code, name: of the finding that proposes it.   summary: what it does, one sentence (marked with N_).
    match: nodes that it would change; must be cheap and must not modify the graph.
    replace: change the graph at one of them, return whether it did. It may rely on node.meta['val'] for shapes, and must give new nodes theirs
        (graphs.call does). It leaves dead nodes to be swept.
    exact: results change by rounding only.   families: targets that it is for, () for all.
    gain: share of the matched operators' own predicted time that it saves, to order trials by.
    """

    code: str
    name: str
    summary: str
    match: Callable[[GraphModule], Iterable[Node]]
    replace: Callable[[GraphModule, Node], bool]
    exact: bool = True
    families: tuple[str, ...] = ()
    gain: float = 0.5
    severity: Severity = Severity.INFO

    def propose(self, capture: Capture, target: Target) -> Iterator[Change]:
        """The change with its finding, when it matches anything in this model."""
        if self.families and not set(self.families) & set(target.families):
            return
        module = graph_of(capture)
        if module is None:
            return
        nodes = self.places(module)
        if not nodes:
            return
        share = cost_share(capture, {n.name for n in nodes}, target)
        location, _call = graphs.node_lines(nodes[0])
        message = _(self.summary) + " " + ngettext("It applies at {n} place.", "It applies at {n} places.", len(nodes)).format(n=len(nodes))
        finding = Finding(
            self.code, self.name, self.severity, message, location, graphs.node_module(nodes[0]), _("npulift tune tries it and keeps it if it wins."),
            share, Kind.PREDICTED if share is not None else None, {"places": len(nodes), "nodes": [n.name for n in nodes[:20]], "rewrite": self.name},
        )
        yield Change(self.name, _(self.summary), (share or 0.0) * self.gain, self.apply, self.exact, finding)

    def places(self, module: GraphModule) -> list[Node]:
        """What match gives, without nodes whose operands or results are written to in place: their value depends on when it is read."""
        written = graphs.written(module)
        return [n for n in self.match(module) if not written or (n not in written and written.isdisjoint(n.all_input_nodes))]

    def apply(self, variant: Variant) -> Variant | None:
        """The variant with the graph rewritten, or None when nothing matches. The variant given is left as it is."""
        module = graphs.graph_module(variant.spec)
        if not self.rewrite(module):
            return None
        return variant.with_module(module)

    def rewrite(self, module: GraphModule) -> int:
        """Rewrite this graph in place wherever it matches, until nothing matches any more; returns the number of places."""
        count = 0
        with torch.no_grad():
            for _round in range(50):
                changed = 0
                for node in self.places(module):
                    if not node._erased and self.replace(module, node):
                        changed += 1
                if not changed:
                    break
                count += changed
                module.graph.eliminate_dead_code()
        if count:
            for node in graphs.calls(module.graph, torch.ops.aten.view.default):
                node.target = torch.ops.aten.reshape.default  # a view relied on strides that the rewrite may have changed
            graphs.tidy(module)
        return count


_GRAPHS: dict[int, tuple[Capture, GraphModule]] = {}


def graph_of(capture: Capture) -> GraphModule | None:
    """The capture's graph for matching (shared, not to be modified); None when the model cannot be exported."""
    if capture.exported is None or capture.draft:
        return None
    found = _GRAPHS.get(id(capture))
    if found is None or found[0] is not capture:
        _GRAPHS.clear()
        found = _GRAPHS[id(capture)] = (capture, graphs.graph_module(capture.spec, capture.exported))
    return found[1]


def cost_share(capture: Capture, nodes: set[str], target: Target) -> float | None:
    """Share of the predicted time of the exported graph that these nodes take, by the target's own weights; None when unknown."""
    weights = {op.node: target.weight(op) for op in capture.exported_ops}
    known = {k: w for k, w in weights.items() if w is not None}
    total = sum(known.values())
    return sum(known.get(n, 0.0) for n in nodes) / total if total else None


def constant(value: Any) -> bool:
    """True for Python numbers and None: an argument that is known while rewriting."""
    return value is None or isinstance(value, int | float | bool | str)
