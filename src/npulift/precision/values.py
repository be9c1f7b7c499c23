"""The values that the nodes of an exported graph have on the user's own example inputs, computed on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import Node

from npulift.capture import Capture

LIMIT_FLOPS = 2e11  # a rule does not run a graph that would take much longer than a few seconds here


class Watching(torch.fx.Interpreter):
    """Runs a graph and hands each node's value to `seen`, which may return another value to go on with (None keeps it)."""

    def __init__(self, module: torch.fx.GraphModule, seen: Callable[[Node, Any], Any]) -> None:
        super().__init__(module, garbage_collect_values=True)
        self._seen = seen
        self.extra_traceback = False

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        other = self._seen(n, value)
        return value if other is None else other


def runnable(capture: Capture) -> bool:
    """True when the exported graph can be run here on the example inputs in a short time."""
    if capture.exported is None or capture.draft or capture.device == "meta":
        return False
    return sum(op.flops or 0 for op in capture.exported_ops) <= LIMIT_FLOPS


def graph_of(capture: Capture) -> torch.fx.GraphModule:
    """The exported program as a module to interpret (a new one at each call)."""
    assert capture.exported is not None
    module = capture.exported.module(check_guards=False)
    assert isinstance(module, torch.fx.GraphModule)
    return module


def values_of(capture: Capture, wanted: Iterable[str]) -> dict[str, Any]:
    """Value of each node named in `wanted`, {} when the graph cannot be run here. Tensors are clones, so in-place operators do not change them."""
    names = set(wanted)
    if not names or not runnable(capture):
        return {}
    found: dict[str, Any] = {}

    def keep(node: Node, value: Any) -> None:
        if node.name in names:
            found[node.name] = value.detach().clone() if isinstance(value, torch.Tensor) else value

    try:
        with torch.no_grad():
            Watching(graph_of(capture), keep).run(*inputs_of(capture))
    except Exception:  # the sample may lead an operator astray (out of memory, an index out of range); then there is no evidence from values
        return found
    return found


def inputs_of(capture: Capture) -> tuple[Any, ...]:
    """The example inputs in the order in which the graph takes them; scalars are baked into it and stay in the call."""
    return tuple(v.detach().clone() if isinstance(v, torch.Tensor) else v for v in capture.spec.inputs)


def demoted(value: Any) -> Any:
    """float64 as float32 and complex128 as complex64, in tensors and in dtype arguments."""
    if isinstance(value, torch.Tensor):
        return value.to(_LOWER[value.dtype]) if value.dtype in _LOWER else value
    return _LOWER.get(value, value) if isinstance(value, torch.dtype) else value


_LOWER = {torch.float64: torch.float32, torch.complex128: torch.complex64}


class Demoting(torch.fx.Interpreter):
    """Runs a graph with every float64 computed in float32; `kept` collects the values of the nodes named in `wanted`.

    lengths: for nodes of aten.arange, another number of elements.
    """

    def __init__(self, module: torch.fx.GraphModule, wanted: set[str], *, demote: bool, lengths: dict[str, int] | None = None) -> None:
        super().__init__(module, garbage_collect_values=True)
        self._wanted, self._demote, self._lengths = wanted, demote, lengths or {}
        self.kept: dict[str, torch.Tensor] = {}
        self.extra_traceback = False

    def run_node(self, n: Node) -> Any:
        if n.target is torch.ops.aten._assert_tensor_metadata.default:
            return None
        value = super().run_node(n)
        if n.name in self._wanted and isinstance(value, torch.Tensor):
            self.kept[n.name] = value.detach().clone()
        return value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if self._demote:
            args, kwargs = torch.utils._pytree.tree_map(demoted, (args, kwargs))
        return super().call_function(target, args, kwargs)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().get_attr(target, args, kwargs)
        return demoted(value) if self._demote else value
