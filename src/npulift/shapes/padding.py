"""Padding: put inputs into a bucket, take outputs out of it, and find out whether that changes the answer.

Whether it does is not guessed from the operators but seen: the model runs on an input as it is and on the same input padded, and the outputs are
compared where both exist. When they differ, both runs are compared operator by operator on the exported graph, and the first that differs is named.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.fx import Interpreter
from torch.utils._pytree import tree_leaves

from npulift import graphs
from npulift.findings import Finding, Location, Severity
from npulift.messages import _
from npulift.model import Dim, ModelSpec

Sizes = dict[str, int]
Axes = dict[int, str]  # axis -> name of the dim
EXACT = 1e-5  # of the largest value: what different summation orders make


@dataclass(frozen=True)
class Divergence:
    """Where padding changed the answer. relative: error of the outputs; operator, location: of the first operator that differs, if it was found."""

    sizes: Sizes
    bucket: Sizes
    relative: float
    operator: str = ""
    location: Location | None = None
    module: str = ""


def input_axes(spec: ModelSpec) -> list[Axes]:
    """For each input, which axes vary."""
    return [{axis: dim.name for axis, dim in spec.dynamic_dims.get(i, {}).items()} for i in range(len(spec.inputs))]


def with_dims(spec: ModelSpec) -> ModelSpec:
    """The spec with dims made up where it names none: height and width of images, length of sequences.

    Images are 4-D floating inputs with 1, 3 or 4 channels; sequences are integer inputs and what shares their second size.
    """
    if spec.dynamic_dims:
        return spec
    dims: dict[int, dict[int, Dim]] = {}
    lengths = {i.shape[1] for i in spec.tensors if i.ndim == 2 and not i.is_floating_point()}
    for position, value in enumerate(spec.inputs):
        if not isinstance(value, torch.Tensor):
            continue
        if value.ndim == 4 and value.is_floating_point() and value.shape[1] in (1, 3, 4):
            dims[position] = {2: Dim("height"), 3: Dim("width")}
        elif value.ndim >= 2 and value.shape[1] in lengths:
            dims[position] = {1: Dim("length")}
    return replace(spec, dynamic_dims=dims)


def dim_names(spec: ModelSpec) -> tuple[str, ...]:
    """Names of the dims that vary, each once, in order of appearance."""
    return tuple(dict.fromkeys(name for axes in input_axes(spec) for name in axes.values()))


def batch_dims(spec: ModelSpec) -> frozenset[str]:
    """The dims that are the first axis of every input they appear in."""
    axes = input_axes(spec)
    return frozenset(name for name in dim_names(spec) if all(axis == 0 for a in axes for axis, n in a.items() if n == name))


def is_image(spec: ModelSpec) -> bool:
    """True when what varies is height and width of a 4-D input."""
    return any(isinstance(v, torch.Tensor) and v.ndim == 4 and {2, 3} & set(a) for v, a in zip(spec.inputs, input_axes(spec), strict=True))


def resized(spec: ModelSpec, sizes: Sizes) -> tuple[Any, ...]:
    """The example inputs at other sizes: cut where smaller, repeated where larger."""
    result = []
    for value, axes in zip(spec.inputs, input_axes(spec), strict=True):
        if isinstance(value, torch.Tensor):
            for axis, name in axes.items():
                if name in sizes and value.shape[axis] != sizes[name]:
                    times = -(-sizes[name] // value.shape[axis])
                    value = torch.cat([value] * times, dim=axis) if times > 1 else value
                    value = value.narrow(axis, 0, sizes[name]).contiguous()
        result.append(value)
    return tuple(result)


def pad(value: np.ndarray[Any, Any], axes: Axes, bucket: Sizes, fill: float = 0.0) -> np.ndarray[Any, Any]:
    """The array in a larger one of the bucket's sizes, at its beginning; itself when it fits exactly."""
    shape = list(value.shape)
    for axis, name in axes.items():
        shape[axis] = bucket[name]
    if tuple(shape) == value.shape:
        return value
    padded = np.full(shape, fill, dtype=value.dtype) if fill else np.zeros(shape, dtype=value.dtype)
    padded[tuple(slice(0, n) for n in value.shape)] = value
    return padded


def cut(value: np.ndarray[Any, Any], axes: Axes, sizes: Sizes) -> np.ndarray[Any, Any]:
    """The beginning of an output, of the sizes that the unpadded input would have given."""
    if not axes:
        return value
    return value[tuple(slice(0, sizes[axes[i]]) if i in axes else slice(None) for i in range(value.ndim))]


def output_axes(spec: ModelSpec) -> list[Axes]:
    """For each output, which axes follow which dim: by running the module at two sizes of each dim in turn.

    Only axes that are as long as the dim itself are told; others (strided maps) count as fixed by the bucket and are returned as they are.
    """
    names = dim_names(spec)
    base = {name: _example_size(spec, name) for name in names}
    outputs = _run(spec, resized(spec, base))
    found: list[Axes] = [{} for _o in outputs]
    for name in names:
        other = {**base, name: _another(spec, name, base[name])}
        for axes, before, after in zip(found, outputs, _run(spec, resized(spec, other)), strict=True):
            for axis, (a, b) in enumerate(zip(before.shape, after.shape, strict=True)):
                if a == base[name] and b == other[name]:
                    axes[axis] = name
    return found


def _example_size(spec: ModelSpec, name: str) -> int:
    for value, axes in zip(spec.inputs, input_axes(spec), strict=True):
        for axis, dim in axes.items():
            if dim == name:
                return int(value.shape[axis])
    raise KeyError(name)


def _dim(spec: ModelSpec, name: str) -> Dim:
    return next(d for axes in spec.dynamic_dims.values() for d in axes.values() if d.name == name)


def _another(spec: ModelSpec, name: str, size: int) -> int:
    dim = _dim(spec, name)
    for candidate in (size - 1, size + 1, size * 2, max(1, size // 2)):
        if candidate != size and candidate >= max(1, dim.low) and (dim.high is None or candidate <= dim.high):
            return candidate
    return size


def _run(spec: ModelSpec, inputs: tuple[Any, ...]) -> list[torch.Tensor]:
    with torch.inference_mode():
        return [v for v in tree_leaves(spec.module(*inputs)) if isinstance(v, torch.Tensor)]


def divergence(spec: ModelSpec, buckets: list[Sizes]) -> Divergence | None:
    """The worst change of the answer that padding into these buckets makes on the example inputs; None when there is none beyond rounding."""
    axes_in, axes_out = input_axes(spec), output_axes(spec)
    worst: Divergence | None = None
    for bucket in buckets:
        for sizes in _probes(spec, bucket):
            inputs = resized(spec, sizes)
            padded = _padded(inputs, axes_in, bucket)
            try:
                plain, wide = _run(spec, inputs), _run(spec, padded)
            except (RuntimeError, ValueError, IndexError):
                continue  # the model cannot take this size at all; compiling the bucket will say so
            relative = max(_error(a, b, axes, sizes) for a, b, axes in zip(plain, wide, axes_out, strict=True))
            if relative > EXACT and (worst is None or relative > worst.relative):
                worst = Divergence(sizes, bucket, relative)
    return worst if worst is None else _first_difference(spec, worst, axes_in)


def _padded(inputs: tuple[Any, ...], axes: list[Axes], bucket: Sizes) -> tuple[Any, ...]:
    return tuple(torch.from_numpy(pad(v.numpy(), a, bucket)) if isinstance(v, torch.Tensor) else v for v, a in zip(inputs, axes, strict=True))


def _probes(spec: ModelSpec, bucket: Sizes) -> list[Sizes]:
    """Sizes within the bucket: one less than it, and about two thirds of it, in each dim and in all dims."""
    probes = []
    for name, size in bucket.items():
        low = max(1, _dim(spec, name).low)
        for smaller in {size - 1, size * 2 // 3}:
            if low <= smaller < size:
                probes.append({**bucket, name: smaller})
    return probes


def _error(plain: torch.Tensor, wide: torch.Tensor, axes: Axes, sizes: Sizes) -> float:
    a = plain.double().numpy()
    b = cut(wide.double().numpy(), axes, sizes)
    if a.shape != b.shape:
        return float("inf")
    if a.size == 0:
        return 0.0
    gap = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    scale = float(np.abs(a[np.isfinite(a)]).max(initial=0.0))
    return float(gap.max()) / scale if scale > 1e-12 else float(gap.max())


class _Recorder(Interpreter):
    """Runs a graph and keeps every tensor by node name."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.values: dict[str, torch.Tensor] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, torch.Tensor):
            self.values[n.name] = value
        return value


def _first_difference(spec: ModelSpec, worst: Divergence, axes_in: list[Axes]) -> Divergence:
    """The first operator at which the padded run differs on the part that both have."""
    try:
        program = graphs.export(replace(spec, inputs=exportable(spec)))
        module = program.module(check_guards=False)
        inputs = resized(spec, worst.sizes)
        runs = []
        for given in (inputs, _padded(inputs, axes_in, worst.bucket)):
            recorder = _Recorder(module)
            with torch.inference_mode():
                recorder.run(*given)
            runs.append(recorder.values)
    except Exception:  # not exportable with these dims: the error itself is known, only its place is not
        return worst
    pairs = {worst.sizes[n]: worst.bucket[n] for n in worst.bucket if worst.sizes[n] != worst.bucket[n]}
    for node in module.graph.nodes:
        a, b = runs[0].get(node.name), runs[1].get(node.name)
        if node.op != "call_function" or a is None or b is None or a.ndim != b.ndim or not a.is_floating_point():
            continue
        common = tuple(slice(0, s) if pairs.get(s) == t else slice(None) for s, t in zip(a.shape, b.shape, strict=True))
        part = b[common]
        if part.shape != a.shape:
            continue
        gap = (a - part).abs().nan_to_num().max() if a.numel() else torch.zeros(())
        if float(gap) > EXACT * max(1e-12, float(a.abs().nan_to_num().max())):
            location, _call = graphs.node_lines(node)
            return replace(worst, operator=graphs.operator_name(node.target), location=location, module=graphs.node_module(node))
    return worst


def exportable(spec: ModelSpec) -> tuple[Any, ...]:
    """Example inputs for an export with dims that vary: sizes of 0 and 1 would be taken for constants, so they become 2 where the dim allows it."""
    sizes = {}
    for name in dim_names(spec):
        size, dim = _example_size(spec, name), _dim(spec, name)
        if size < 2 and (dim.high is None or dim.high >= 2):
            sizes[name] = 2
    return resized(spec, sizes) if sizes else spec.inputs


def padding_finding(found: Divergence) -> Finding:
    """The finding that a divergence becomes."""
    place = _("first at {operator}").format(operator=found.operator) if found.operator else _("the operator could not be told")
    sizes = ", ".join(f"{k}={v}" for k, v in found.sizes.items())
    bucket = ", ".join(f"{k}={v}" for k, v in found.bucket.items())
    return Finding(
        "NPU235", "padding-changes-answer", Severity.ERROR,
        _("Padding {sizes} to {bucket} changes the answer by {relative:.2g} of the largest value, {place}: what is padded takes part there.").format(
            sizes=sizes, bucket=bucket, relative=found.relative, place=place),
        found.location, found.module,
        _("Give the model a mask that leaves padded positions out (attention, pooling, norms, losses), or compile the exact sizes."),
        details={"sizes": found.sizes, "bucket": found.bucket, "relative_error": found.relative, "operator": found.operator},
    )
