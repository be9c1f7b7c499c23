"""Compute with complex numbers as pairs of real ones (rotary embeddings written with view_as_complex, polar and view_as_real).

Applies to view_as_complex, complex, polar and complex constants, through mul, add, sub, conj, reshapes, slices, permutations and expansions, to view_as_real, real, imag and
abs; a graph with any other complex operator is left alone. Exact but for rounding: (a + bi)(c + di) = (ac - bd) + (ad + bc)i.
Pays because no NPU has complex numbers: on Ascend such products run on the AI CPU, others refuse them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from npulift import graphs
from npulift.messages import N_
from npulift.rewriting import Rewrite

_aten = torch.ops.aten
_MAKERS = (_aten.view_as_complex.default, _aten.complex.default, _aten.polar.default)
_READERS = (_aten.view_as_real.default, _aten.real.default, _aten.imag.default, _aten.abs.default)
_PRODUCTS, _SUMS = (_aten.mul.Tensor,), (_aten.add.Tensor, _aten.sub.Tensor)
_MOVES = (  # the same for both parts
    _aten.view.default, _aten.reshape.default, _aten.unsqueeze.default, _aten.squeeze.dim, _aten.expand.default, _aten.slice.Tensor, _aten.select.int, _aten.permute.default,
    _aten.transpose.int, _aten.index.Tensor, _aten.index_select.default, _aten.clone.default, _aten.contiguous.default, _aten.detach.default, _aten.flatten.using_ints,
    _aten.unflatten.int, _aten.lift_fresh_copy.default, _aten.cat.default, _aten.alias.default,
)
_CONJ = (_aten.conj.default, _aten._conj.default, _aten.conj_physical.default, _aten.resolve_conj.default)


def _complex(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and value.is_complex()


def match(module: GraphModule) -> Iterator[Node]:
    """The first complex value, when all of them can go."""
    values = [n for n in module.graph.nodes if _complex(n)]
    readers = [n for n in graphs.calls(module.graph) if not _complex(n) and any(_complex(a) for a in n.all_input_nodes)]
    if values and all(_known(module, n) for n in values) and all(r.target in _READERS for r in readers) and not any(_complex(a) for n in module.graph.nodes if n.op == "output" for a in n.all_input_nodes):
        yield values[0]


def _known(module: GraphModule, node: Node) -> bool:
    if node.op == "get_attr":
        return graphs.attribute(module, node) is not None
    if node.target in (*_PRODUCTS, *_SUMS):
        return not node.kwargs and all(not isinstance(a, complex) for a in node.args)
    return node.target in (*_MAKERS, *_MOVES, *_CONJ)


def replace(module: GraphModule, _node: Node) -> bool:
    """Make two real values of each complex one."""
    pairs: dict[Node, tuple[Any, Any]] = {}
    for node in list(module.graph.nodes):
        if _complex(node):
            pairs[node] = _parts(module, node, pairs)
        elif node.op == "call_function" and any(a in pairs for a in node.all_input_nodes):
            real, imaginary = pairs[node.args[0]]
            if node.target is _aten.view_as_real.default:
                value = graphs.call(module, node, _aten.stack.default, [real, imaginary], -1)
            elif node.target is _aten.abs.default:
                value = graphs.call(module, node, _aten.hypot.default, real, imaginary)
            else:
                value = real if node.target is _aten.real.default else imaginary
            graphs.replace_all(module, node, value)
    for node in reversed(list(pairs)):
        module.graph.erase_node(node)
    return True


def _parts(module: GraphModule, node: Node, pairs: dict[Node, tuple[Any, Any]]) -> tuple[Any, Any]:
    def call(target: Any, *args: Any, **kwargs: Any) -> Node:
        return graphs.call(module, node, target, *args, **kwargs)

    args: Any = node.args
    if node.op == "get_attr":
        tensor = graphs.attribute(module, node)
        assert tensor is not None
        return tuple(graphs.add_constant(module, node, part.contiguous(), "part") for part in (tensor.resolve_conj().real, tensor.resolve_conj().imag))  # type: ignore[return-value]
    if node.target is _aten.view_as_complex.default:
        return call(_aten.select.int, args[0], -1, 0), call(_aten.select.int, args[0], -1, 1)
    if node.target is _aten.complex.default:
        return args[0], args[1]
    if node.target is _aten.polar.default:
        return call(_aten.mul.Tensor, args[0], call(_aten.cos.default, args[1])), call(_aten.mul.Tensor, args[0], call(_aten.sin.default, args[1]))
    if node.target in _CONJ:
        real, imaginary = pairs[args[0]]
        return (real, imaginary) if node.target is _aten.resolve_conj.default else (real, call(_aten.neg.default, imaginary))
    if node.target in _PRODUCTS:
        a, b = args
        if a in pairs and b in pairs:
            (ar, ai), (br, bi) = pairs[a], pairs[b]
            return (call(_aten.sub.Tensor, call(_aten.mul.Tensor, ar, br), call(_aten.mul.Tensor, ai, bi)),
                    call(_aten.add.Tensor, call(_aten.mul.Tensor, ar, bi), call(_aten.mul.Tensor, ai, br)))
        pair, factor = (pairs[a], b) if a in pairs else (pairs[b], a)
        return call(_aten.mul.Tensor, pair[0], factor), call(_aten.mul.Tensor, pair[1], factor)
    if node.target in _SUMS:
        a, b = args
        (ar, ai), (br, bi) = pairs.get(a, (a, 0)), pairs.get(b, (b, 0))
        return _sum(module, node, ar, br), _sum(module, node, ai, bi)

    def of(index: int) -> Any:
        return torch.fx.node.map_arg(args, lambda n: pairs[n][index] if n in pairs else n)

    return call(node.target, *of(0), **node.kwargs), call(node.target, *of(1), **node.kwargs)


def _sum(module: GraphModule, node: Node, a: Any, b: Any) -> Any:
    if not isinstance(a, Node):  # number - tensor
        a = graphs.call(module, node, _aten.full_like.default, b, a)
    return graphs.call(module, node, node.target, a, b)


REWRITE = Rewrite("NPU531", "complex-as-real", N_("Compute with complex numbers as pairs of real ones."), match, replace, gain=0.5)
