"""ModelSpec: what the user has. A module, example inputs, what may vary, and how to tell whether a change kept it right."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Dim:
    """A named dimension that varies between calls. Bounds are inclusive element counts; high None means without a bound."""

    name: str
    low: int = 1
    high: int | None = None

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"a dim needs an identifier for its name, not {self.name!r}")
        if self.low < 0 or (self.high is not None and self.high < self.low):
            raise ValueError(f"dim {self.name}: the range {self.low}..{self.high} is empty")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far an output may be from eager.

    exact: for changes that only reorder arithmetic (largest absolute difference over the largest absolute reference value).
    lossy: the same, for changes that lower precision; used alone where the spec has no metric.
    """

    exact: float = 1e-4
    lossy: float = 1e-2


Metric = Callable[[list[tuple[torch.Tensor, ...]]], float]


@dataclass(frozen=True)
class ModelSpec:
    """A model and everything npulift needs to know about it.

    module: in the mode (eval or train) in which it is to run.
    inputs: one example call, a tuple of tensors (positional arguments) of the shapes that a user would send.
    dynamic_dims: for each input that varies, by position, {axis: Dim}; Dims of the same name are equal.
    calibration: further input tuples for quantisation; without them the example inputs serve, and reports say so.
    evaluation: input tuples that the metric is computed on, in this order.
    metric: takes the list of output tuples (one for each evaluation input, CPU tensors) and returns a figure, higher is better.
    tolerance: how far outputs may be from eager where no metric decides.
    name: what reports call it.   origin: the MODEL string it came from, '' when it was given as an object.
    input_names: one for each input, for exported graphs; made up when absent.
    """

    module: torch.nn.Module
    inputs: tuple[Any, ...]
    dynamic_dims: dict[int, dict[int, Dim]] = field(default_factory=dict)
    calibration: tuple[tuple[Any, ...], ...] = ()
    evaluation: tuple[tuple[Any, ...], ...] = ()
    metric: Metric | None = None
    metric_name: str = "metric"
    tolerance: Tolerance = field(default_factory=Tolerance)
    name: str = ""
    origin: str = ""
    input_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.module, torch.nn.Module):
            raise TypeError(f"ModelSpec.module is a {type(self.module).__name__}; expected a torch.nn.Module")
        for name in ("inputs", "calibration", "evaluation"):
            value = getattr(self, name)
            if not isinstance(value, tuple):
                object.__setattr__(self, name, tuple(value) if isinstance(value, list) else _as_tuple(value))
        for name in ("calibration", "evaluation"):
            object.__setattr__(self, name, tuple(_as_tuple(i) for i in getattr(self, name)))
        if self.metric is not None and not self.evaluation:
            object.__setattr__(self, "evaluation", (self.inputs,))
        for position, axes in self.dynamic_dims.items():
            if not 0 <= position < len(self.inputs):
                raise ValueError(f"dynamic_dims names input {position}, but there are {len(self.inputs)} inputs")
            rank = getattr(self.inputs[position], "ndim", 0)
            for axis in axes:
                if not 0 <= axis < rank:
                    raise ValueError(f"dynamic_dims names axis {axis} of input {position}, which has {rank} axes")

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The inputs that are tensors, in order."""
        return tuple(i for i in self.inputs if isinstance(i, torch.Tensor))

    def names(self) -> tuple[str, ...]:
        """A name for each input: the given ones, else input_0, input_1, ..."""
        return self.input_names or tuple(f"input_{i}" for i in range(len(self.inputs)))


def _as_tuple(value: Any) -> tuple[Any, ...]:
    if isinstance(value, torch.Tensor):
        return (value,)
    return tuple(value) if isinstance(value, Iterable) else (value,)
