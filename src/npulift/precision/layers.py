"""Run a graph twice at once, as a reference and in an imitated precision, and tell for each operator what it caused and what it only passed on.

For every operator: r, the reference; e, the imitation (its inputs are imitations, the operator accumulates in float32, the result is rounded to the format); h, the operator in the
reference's precision on the imitation's inputs. Then e - h is the operator's own doing and h - r what it inherited.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves, tree_map

from npulift import graphs
from npulift.findings import Location
from npulift.precision.formats import Format, quantised, quantised_weight, rounded

_WEIGHTED = ("conv1d", "conv2d", "conv3d", "linear", "convolution", "conv_transpose2d", "matmul", "mm", "addmm", "bmm", "embedding")
_HALF = (torch.float16, torch.bfloat16)
_MOVES = (
    ["view", "reshape", "permute", "transpose", "t", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "slice", "select", "contiguous", "clone", "detach", "alias", "cat", "stack", "split", "chunk", "unbind", "narrow", "to", "_to_copy", "movedim", "split_with_sizes", "dropout", "pad", "constant_pad_nd", "getitem"]
)


@dataclass(frozen=True)
class Layer:
    """One operator of the graph and what became of its (first) result.

    status: 'ok' | 'nan' | 'overflow' | 'saturation' | 'underflow' | 'precision-loss' | 'nan-in-reference'.   caused: True when its own doing, False when inherited.
    cosine, relative, absolute: of e against r (relative is L2 over L2; non-finite elements left out).   own, inherited: relative L2 of e - h and of h - r.
    largest: of |r|.   lost: share of elements that are zero in e and not in r.
    """

    node: str
    operator: str
    module: str
    location: Location | None
    status: str
    caused: bool
    cosine: float
    relative: float
    absolute: float
    own: float
    inherited: float
    largest: float
    lost: float
    shape: tuple[int, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "node": self.node, "operator": self.operator, "module": self.module, "file": self.location.file if self.location else None,
            "line": self.location.line if self.location else None, "status": self.status, "caused": self.caused, "cosine": self.cosine, "relative_error": self.relative,
            "max_abs_error": self.absolute, "own_error": self.own, "inherited_error": self.inherited, "reference_max_abs": self.largest, "flushed_to_zero": self.lost,
            "shape": list(self.shape),
        }


@dataclass(frozen=True)
class Pair:
    """A value in both worlds."""

    reference: Any
    imitation: Any


class Comparing(torch.fx.Interpreter):
    """Interprets with Pairs instead of tensors; `layers` fills as it goes."""

    def __init__(self, module: torch.fx.GraphModule, form: Format | None, threshold: float | None = None) -> None:
        super().__init__(module, garbage_collect_values=True)
        self._form = form
        self._threshold = threshold if threshold is not None else form.threshold if form else 1e-3
        self.extra_traceback = False
        self.layers: list[Layer] = []
        self.outputs: list[Pair] = []

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().placeholder(target, args, kwargs)
        reference = _up(value)
        return Pair(reference, self._round(reference))

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().get_attr(target, args, kwargs)
        if not isinstance(value, torch.Tensor):
            return value
        reference = _up(value)
        return Pair(reference, self._round(reference))

    def _round(self, value: Any) -> Any:
        return rounded(value, self._form) if self._form and isinstance(value, torch.Tensor) else value

    def run_node(self, n: Node) -> Any:
        if n.op != "call_function":
            return super().run_node(n)
        if n.target is torch.ops.aten._assert_tensor_metadata.default or (isinstance(n.target, torch._ops.OpOverload) and n.target._opname.startswith("_assert")):
            return None
        args, kwargs = self.fetch_args_kwargs_from_env(n)

        def side(which: str) -> tuple[Any, Any]:
            return tree_map(lambda v: getattr(v, which) if isinstance(v, Pair) else _up_dtype(v), (args, kwargs), is_leaf=lambda v: isinstance(v, Pair))

        target: Any = n.target
        r_args, r_kwargs = side("reference")
        reference = target(*_fresh(target, r_args), **r_kwargs)
        e_args, e_kwargs = side("imitation")
        # An integer form keeps weights exact in the pair; they become integers where they are multiplied.
        own_args = self._weights(n, e_args)
        imitation = target(*_fresh(target, own_args), **e_kwargs)
        passed = imitation if own_args is e_args else target(*_fresh(target, e_args), **e_kwargs)
        imitation = tree_map(lambda a, b: self._result(n, a, b), imitation, reference)
        self._judge(n, reference, imitation, passed, any(_bad(p) for p in tree_leaves((args, kwargs), is_leaf=lambda v: isinstance(v, Pair))))
        return tree_map(lambda a, b: Pair(a, b) if isinstance(a, torch.Tensor) else a, reference, imitation)

    def output(self, target: Any, args: Any, kwargs: Any) -> Any:
        self.outputs = [v for v in tree_leaves(args, is_leaf=lambda v: isinstance(v, Pair)) if isinstance(v, Pair)]
        return None

    def _weights(self, node: Node, args: Any) -> Any:
        form = self._form
        name = getattr(node.target, "_opname", "")
        if form is None or form.floating is not None or name not in _WEIGHTED or not form.weight:
            return args
        at = 0 if name == "embedding" else 2 if name == "addmm" else 1
        if len(args) <= at or not isinstance(args[at], torch.Tensor) or not args[at].is_floating_point() or not (isinstance(node.args[at], Node) and node.args[at].op == "get_attr"):  # type: ignore[union-attr]
            return args
        made = list(args)
        made[at] = quantised_weight(args[at], form.weight)
        return tuple(made)

    def _result(self, node: Node, value: Any, reference: Any) -> Any:
        form = self._form
        if form is None or not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        if form.floating is not None:
            return rounded(value, form)
        if getattr(node.target, "_opname", getattr(node.target, "__name__", "")) in _MOVES or form.activation >= 16 or not reference.numel():
            return value
        finite = reference[torch.isfinite(reference)]
        return quantised(value, float(finite.min()), float(finite.max()), form.activation) if finite.numel() else value

    def _judge(self, node: Node, reference: Any, imitation: Any, passed: Any, inherited_bad: bool) -> None:
        triples = zip(tree_leaves(reference), tree_leaves(imitation), tree_leaves(passed), strict=False)
        r, e, h = next(((a, b, c) for a, b, c in triples if isinstance(a, torch.Tensor) and a.is_floating_point()), (None, None, None))
        if r is None or e is None or h is None or not r.numel() or e.shape != r.shape:
            return
        location, _call = graphs.node_lines(node)
        r, e, h = r.double(), e.double(), h.double()
        status, caused = self._status(r, e, h, inherited_bad)
        finite = torch.isfinite(r) & torch.isfinite(e) & torch.isfinite(h)
        rf, ef, hf = r[finite], e[finite], h[finite]
        norm = float(rf.norm()) or 1.0
        whole = r[torch.isfinite(r)]
        relative, own, inherited = float((ef - rf).norm()) / norm, float((ef - hf).norm()) / norm, float((hf - rf).norm()) / norm
        if status == "ok" and relative > self._threshold and float(rf.norm()) > 0:
            lost = float(r[(e == 0) & (r != 0)].norm()) / norm
            status = "underflow" if lost > relative / 2 else "precision-loss"
            caused = own > inherited
        cosine = float((ef @ rf) / (ef.norm() * rf.norm())) if float(ef.norm()) and float(rf.norm()) else 1.0 if relative == 0 else 0.0
        self.layers.append(Layer(
            node.name, graphs.operator_name(node.target).partition(".")[0], graphs.node_module(node), location, status, caused, cosine, relative,
            float((ef - rf).abs().max()) if ef.numel() else 0.0, own, inherited, float(whole.abs().max()) if whole.numel() else 0.0,
            float(((e == 0) & (r != 0)).double().mean()), tuple(int(s) for s in r.shape),
        ))

    def _status(self, r: torch.Tensor, e: torch.Tensor, h: torch.Tensor, inherited_bad: bool) -> tuple[str, bool]:
        nan_r, nan_e = torch.isnan(r), torch.isnan(e)
        if bool((nan_e & ~nan_r).any()):
            return "nan", not inherited_bad
        if bool(nan_r.any()):
            return "nan-in-reference", not inherited_bad
        if bool((torch.isinf(e) & ~torch.isinf(r)).any()):
            return "overflow", not inherited_bad
        form = self._form
        if form is not None and form.saturates and bool(((e.abs() >= form.largest) & (r.abs() > form.largest) & torch.isfinite(r)).any()):
            return "saturation", bool((h.abs() > form.largest).any())
        return "ok", False


def _bad(pair: Any) -> bool:
    """A pair whose imitation has NaN, or an infinity that the reference has not."""
    if not isinstance(pair, Pair) or not isinstance(pair.imitation, torch.Tensor) or not pair.imitation.is_floating_point():
        return False
    e, r = pair.imitation, pair.reference
    return bool(torch.isnan(e).any()) or (e.shape == r.shape and bool((torch.isinf(e) & ~torch.isinf(r)).any()))


def _up(value: Any) -> Any:
    """Half precision as float32; the reference computes at least in that."""
    return value.detach().float() if isinstance(value, torch.Tensor) and value.dtype in _HALF else value.detach() if isinstance(value, torch.Tensor) else value


def _up_dtype(value: Any) -> Any:
    return torch.float32 if isinstance(value, torch.dtype) and value in _HALF else value


def _fresh(target: Any, args: Any) -> Any:
    """Copies for operators that write into their arguments."""
    schema = getattr(target, "_schema", None)
    if schema is not None and schema.is_mutable:
        return tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, args)
    return args


def first_bad(layers: list[Layer]) -> Layer | None:
    """Where it goes wrong first by an operator's own doing; the first that is bad at all when none is to blame alone (the error then grew little by little)."""
    bad = [layer for layer in layers if layer.status != "ok"]
    severe = [layer for layer in bad if layer.caused and layer.status in ("nan", "overflow", "saturation", "nan-in-reference")]
    blamed = next((layer for layer in bad if layer.caused), None)
    if severe and blamed is not None and blamed.status in ("precision-loss", "underflow") and layers.index(blamed) > layers.index(severe[0]):
        return severe[0]
    return blamed or next(iter(bad), None)


def worst(layers: list[Layer], count: int = 10) -> Iterator[Layer]:
    """The operators with the largest own error, those that only move data left out."""
    ranked = sorted((layer for layer in layers if math.isfinite(layer.own)), key=lambda layer: -layer.own)
    yield from ranked[:count]
