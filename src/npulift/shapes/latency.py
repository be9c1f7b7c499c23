"""Latency by size: measured at a few sizes and interpolated, or predicted from the work where the target gives no time."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npulift import graphs, timing
from npulift.changes import Variant
from npulift.measured import Kind
from npulift.model import ModelSpec
from npulift.shapes.observed import Observed
from npulift.shapes.padding import Sizes, dim_names, exportable, resized
from npulift.targets.base import Target
from npulift.tracing import exported_ops
from npulift.verify import arrays
from npulift.workbench import Built, Workbench

POINTS = 7


@dataclass(frozen=True)
class Latency:
    """Seconds by size. points: the sizes that were looked at, with what they took. kind: of the points; between them it is interpolated:
    piecewise linear for one dim, least squares on (1, V, V * longest side) with V the product of the sizes for several."""

    dims: tuple[str, ...]
    points: tuple[tuple[tuple[int, ...], float], ...]
    kind: Kind
    device: str

    def __call__(self, box: tuple[int, ...]) -> float:
        """Seconds an inference at this size."""
        if len(self.dims) == 1:
            sizes = [p[0][0] for p in self.points]
            times = list(np.maximum.accumulate([p[1] for p in self.points]))
            if box[0] > sizes[-1] and len(sizes) > 1:  # beyond what was looked at: by the last slope
                return float(times[-1] + (times[-1] - times[-2]) / (sizes[-1] - sizes[-2]) * (box[0] - sizes[-1]))
            return float(np.interp(box[0], sizes, times))
        return max(1e-9, float(np.dot(_features(box), self._fit())))

    def _fit(self) -> np.ndarray[Any, Any]:
        rows = np.array([_features(p[0]) for p in self.points])
        times = np.array([p[1] for p in self.points])
        scale = np.abs(rows).max(axis=0)
        for columns in ([0, 1, 2], [0, 1], [1]):  # fewer terms when one comes out negative, since more work never takes less time
            part, *_rest = np.linalg.lstsq(rows[:, columns] / scale[columns], times, rcond=None)
            if (part >= 0).all():
                result = np.zeros(3)
                result[columns] = part / scale[columns]
                return result
        return np.array([0.0, times.sum() / rows[:, 1].sum(), 0.0])


def _features(box: tuple[int, ...]) -> np.ndarray[Any, Any]:
    volume = float(np.prod(box))
    return np.array([1.0, volume, volume * max(box)])


def spread_sizes(observed: Observed, points: int = POINTS) -> list[tuple[int, ...]]:
    """Sizes to look at: from the smallest observed to the largest, evenly in each dim (all dims together, and each dim's extreme alone)."""
    low, high = observed.sizes.min(axis=0), observed.sizes.max(axis=0)
    found = {tuple(round(a + (b - a) * i / (points - 1)) for a, b in zip(low, high, strict=True)) for i in range(points)}
    if len(low) > 1:
        for d in range(len(low)):
            corner = low.copy()
            corner[d] = high[d]
            found.add(tuple(map(int, corner)))
    return sorted(found)


def measured_latency(bench: Workbench, built: Built, spec: ModelSpec, observed: Observed, target: Target, rounds: int = 9) -> Latency:
    """Time the program at several sizes, interleaved. built: compiled with dims that vary; each size is fixed when it is loaded."""
    sizes = spread_sizes(observed)
    timers = {}
    for box in sizes:
        named = dict(zip(observed.dims, box, strict=True))
        inputs = arrays(resized(spec, named))
        running = bench.open(replace(built, variant=built.variant.with_options(sizes=[list(i.shape) for i in inputs])))
        timers[str(box)] = running.timer(inputs, "latency")
    times = timing.interleaved(timers, rounds)
    return Latency(observed.dims, tuple((box, statistics.median(times[str(box)])) for box in sizes), Kind.MEASURED, target.device)


def predicted_latency(spec: ModelSpec, observed: Observed, target: Target) -> Latency:
    """Sum of the target's own weights of the exported operators at several sizes (kind: predicted)."""
    points = []
    for box in spread_sizes(observed):
        named = dict(zip(observed.dims, box, strict=True))
        program = graphs.export(replace(spec, inputs=resized(spec, named), dynamic_dims={}))
        points.append((box, sum(target.weight(op) or 0.0 for op in exported_ops(program))))
    return Latency(observed.dims, tuple(points), Kind.PREDICTED, target.name)


def varying(spec: ModelSpec, target: str, boxes: list[Sizes], options: dict[str, Any]) -> Variant:
    """A variant whose dims may be any size from 1 (or the dim's low) to the largest of the boxes."""
    high = {name: max(b[name] for b in boxes) for name in dim_names(spec)}
    dims = {
        position: {axis: replace(dim, low=max(dim.low, 1), high=max(high[dim.name], 2)) for axis, dim in axes.items()}
        for position, axes in spec.dynamic_dims.items()
    }
    wide = replace(spec, dynamic_dims=dims)
    return Variant(replace(wide, inputs=exportable(wide)), target, options)


__all__ = ["Latency", "measured_latency", "predicted_latency", "spread_sizes", "varying"]
