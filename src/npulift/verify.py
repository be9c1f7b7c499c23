"""Verification: does a changed model still give what eager gives, on the user's inputs, on edge inputs, and by the user's metric."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from npulift.errors import NpuliftError
from npulift.messages import _
from npulift.model import ModelSpec

Arrays = tuple[np.ndarray[Any, Any], ...]
Runner = Callable[[Arrays], Arrays]
SAMPLES = 8  # of the user's inputs that are compared value by value; the metric sees them all


@dataclass(frozen=True)
class Reference:
    """What eager gives. samples: the user's inputs and outputs; edges: generated ones (name, inputs, outputs); metric: of eager, or None."""

    samples: tuple[tuple[Arrays, Arrays], ...]
    edges: tuple[tuple[str, Arrays, Arrays], ...]
    evaluation: tuple[Arrays, ...]
    metric: float | None
    result: Any


@dataclass(frozen=True, slots=True)
class Check:
    """Error of a candidate. error: largest absolute difference on the user's inputs; relative: the same over the largest reference value;
    edge: relative error on generated inputs, with the name of the worst; by_output: absolute error of each output; metric: its value."""

    error: float
    relative: float
    edge: float
    edge_name: str
    by_output: tuple[float, ...]
    metric: float | None
    finite: bool


def reference(spec: ModelSpec) -> Reference:
    """Run eager. Raises NpuliftError when the model raises, gives NaN, or gives something else the second time."""
    if any(t.device.type == "meta" for t in (*spec.tensors, *spec.module.parameters(), *spec.module.buffers())):
        raise NpuliftError(_("{model} is on the meta device: it has shapes but no data, so it can be checked and simulated, not run.").format(model=spec.name))
    first = _call(spec, spec.inputs)
    leaves = [v for v in tree_leaves(first) if isinstance(v, torch.Tensor)]
    if not leaves:
        raise NpuliftError(_("{model} returned no tensor (but {kind}).").format(model=spec.name, kind=type(first).__name__))
    again = [v for v in tree_leaves(_call(spec, spec.inputs)) if isinstance(v, torch.Tensor)]
    for i, (a, b) in enumerate(zip(leaves, again, strict=False)):
        if a.shape != b.shape or not torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)):
            why = _("it is in train mode, so dropout is on and batch statistics move: call .eval()") if spec.module.training else _(
                "something in it is random (dropout called by hand, torch.rand, or state kept between calls)")
            raise NpuliftError(_("{model} gives another output {i} when called again with the same inputs, so no change could be verified: {why}.").format(
                model=spec.name, i=i, why=why))
        if a.is_floating_point() and not torch.isfinite(a).all():
            kind = "NaN" if torch.isnan(a).any() else "inf"
            raise NpuliftError(_("Output {i} of {model} holds {kind} on its example inputs, before anything was changed. npulift compare finds where it starts.").format(
                i=i, model=spec.name, kind=kind))
    samples = [(arrays(spec.inputs), _outputs(first))]
    for inputs in (*spec.evaluation, *spec.calibration)[: SAMPLES - 1]:
        samples.append((arrays(inputs), _outputs(_call(spec, inputs))))
    edges = []
    for name, inputs in edge_inputs(spec):
        try:
            outputs = _outputs(_call(spec, inputs))
        except NpuliftError:
            continue  # not a legal input of this model
        if all(np.isfinite(o).all() for o in outputs if o.dtype.kind == "f"):
            edges.append((name, arrays(inputs), outputs))
    metric = None
    evaluation = tuple(arrays(i) for i in spec.evaluation)
    if spec.metric is not None:
        metric = float(spec.metric([tuple(map(torch.from_numpy, _outputs(_call(spec, i)))) for i in spec.evaluation]))
        if not math.isfinite(metric):
            raise NpuliftError(_("The metric of {model} is {value} for eager itself.").format(model=spec.name, value=metric))
    return Reference(tuple(samples), tuple(edges), evaluation, metric, first)


def compare(run: Runner, spec: ModelSpec, wanted: Reference, *, edges: bool = True) -> Check:
    """Run a candidate on everything and measure how far it is from eager."""
    by_output = [0.0] * len(wanted.samples[0][1])
    relative, finite = 0.0, True
    for inputs, outputs in wanted.samples:
        got = run(inputs)
        if len(got) != len(outputs):
            raise NpuliftError(_("{n} outputs came back instead of {m}.").format(n=len(got), m=len(outputs)), exit_code=1)
        for i, (g, w) in enumerate(zip(got, outputs, strict=True)):
            absolute, rel = difference(g, w)
            by_output[i] = max(by_output[i], absolute)
            relative = max(relative, rel)
            finite = finite and math.isfinite(absolute)
    edge, edge_name = 0.0, ""
    if edges:
        for name, inputs, outputs in wanted.edges:
            worst = max(difference(g, w)[1] for g, w in zip(run(inputs), outputs, strict=True))
            finite = finite and math.isfinite(worst)
            if worst > edge:
                edge, edge_name = worst, name
    metric = None
    if spec.metric is not None:
        metric = float(spec.metric([tuple(torch.from_numpy(np.array(o)) for o in run(i)) for i in wanted.evaluation]))
    return Check(max(by_output), relative, edge, edge_name, tuple(by_output), metric, finite)


def difference(got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> tuple[float, float]:
    """(largest absolute difference, the same over the largest absolute wanted value); infinite for another shape or a NaN that was none."""
    if got.shape != wanted.shape:
        return math.inf, math.inf
    if got.size == 0:
        return 0.0, 0.0
    a, b = got.astype(np.float64, copy=False), wanted.astype(np.float64, copy=False)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    gap = np.where(same, 0.0, np.abs(a - b))
    if not np.isfinite(gap).all():
        return math.inf, math.inf
    largest = float(gap.max())
    finite = np.abs(b[np.isfinite(b)])
    scale = float(finite.max()) if finite.size else 0.0
    return largest, largest / scale if scale > 1e-12 else largest


def edge_inputs(spec: ModelSpec) -> list[tuple[str, tuple[Any, ...]]]:
    """Inputs of the example's shapes that models meet rarely: zeros, ones, small, large, constant and random ones. Integers stay within
    the range that the example has, since they may be indices; booleans stay as they are."""
    generator = torch.Generator().manual_seed(0)

    def filled(value: Any, kind: str) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype == torch.bool or value.is_complex():
            return value
        if not value.is_floating_point():
            low, high = (int(value.min()), int(value.max())) if value.numel() else (0, 0)
            if kind == "random":
                return torch.randint(low, high + 1, value.shape, generator=generator, dtype=value.dtype)
            return torch.full_like(value, low if kind in ("zeros", "small") else high)
        scale = float(value.abs().max()) or 1.0
        if kind == "random":
            return (torch.randn(value.shape, generator=generator) * float(value.std() if value.numel() > 1 else 1.0)).to(value.dtype)
        fill = {"zeros": 0.0, "ones": 1.0, "small": scale * 1e-3, "large": scale * 4.0}[kind]
        return torch.full_like(value, fill) if kind in ("zeros", "ones") else (value / scale * fill).to(value.dtype)

    return [(kind, tuple(filled(v, kind) for v in spec.inputs)) for kind in ("zeros", "ones", "small", "large", "random")]


def arrays(inputs: tuple[Any, ...]) -> Arrays:
    """The tensors among the inputs as arrays."""
    return tuple(v.detach().cpu().contiguous().numpy() for v in inputs if isinstance(v, torch.Tensor))


def _outputs(result: Any) -> Arrays:
    found = []
    for value in tree_leaves(result):
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu()
            found.append((value.float() if value.dtype == torch.bfloat16 else value).contiguous().numpy().copy())
    return tuple(found)


def _call(spec: ModelSpec, inputs: tuple[Any, ...]) -> Any:
    try:
        with torch.inference_mode():
            return spec.module(*[v.clone() if isinstance(v, torch.Tensor) else v for v in inputs])
    except Exception as error:
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        raise NpuliftError(_("{model} cannot be called with its inputs: {error}").format(model=spec.name or type(spec.module).__name__, error=text)) from error
