"""Choose buckets: the set of at most k boxes that covers every observed shape at the least expected cost.

A shape runs in the cheapest box that holds it, so the expected cost is the sum over shapes of share x min cost(box) over the boxes that hold it.
An optimal box never sticks out over the shapes assigned to it, so its sides are among the observed sizes.

One dim: exact, by dynamic programming over the sorted sizes (O(k n^2)). It needs the cost to grow with the size, which `monotone` enforces.
Several dims: a k-median problem over the grid of observed sizes. Exact by enumeration while there are at most ENUMERATE subsets; beyond that a greedy
start with exchanges, and a lower bound from Lagrangian relaxation (subgradient steps on the assignment constraints), whose gap is reported.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from npulift.shapes.observed import Observed

ENUMERATE = 300_000
GRID = 3_000  # boxes that are considered at the most; beyond that sizes are first rounded up to a coarser grid
Box = tuple[int, ...]
Cost = Callable[[Box], float]


@dataclass(frozen=True)
class Choice:
    """buckets: sorted. expected: expected cost, in the cost's unit. bound: a lower bound on the best possible; equal to `expected` when exact.

    method: 'dynamic-programming' | 'enumeration' | 'exchange+lagrange'.   coarse: sizes were rounded up to a coarser grid first.
    """

    buckets: tuple[Box, ...]
    expected: float
    bound: float
    method: str
    coarse: bool = False

    @property
    def gap(self) -> float:
        """How much above the bound, relative; 0 when proved optimal."""
        return max(0.0, self.expected / self.bound - 1.0) if self.bound > 0 else 0.0


def expected_cost(buckets: Sequence[Box], observed: Observed, cost: Cost) -> float:
    """Expected cost of these buckets; infinite when a shape fits none."""
    if not buckets:
        return math.inf
    boxes = np.array(buckets)
    costs = np.array([cost(tuple(map(int, b))) for b in boxes])
    holds = (boxes[None, :, :] >= observed.sizes[:, None, :]).all(axis=2)
    best = np.where(holds, costs[None, :], math.inf).min(axis=1)
    return float((observed.weights * best).sum())


def choose(observed: Observed, k: int, cost: Cost) -> Choice:
    """The buckets. k: how many at the most (1 or more)."""
    if k < 1:
        raise ValueError("at least one bucket is needed")
    if observed.sizes.shape[1] == 1:
        return _one_dim(observed, k, cost)
    return _several_dims(observed, k, cost)


def _one_dim(observed: Observed, k: int, cost: Cost) -> Choice:
    sizes = observed.sizes[:, 0]
    n = len(sizes)
    costs = np.maximum.accumulate([cost((int(s),)) for s in sizes])
    mass = np.concatenate([[0.0], np.cumsum(observed.weights)])
    best = mass[1:] * costs  # one bucket: everything up to i runs at size i
    parents = []
    for _buckets in range(1, min(k, n)):
        following, parent = best.copy(), np.full(n, -1)
        for j in range(1, n):
            options = best[:j] + (mass[j + 1] - mass[1 : j + 1]) * costs[j]
            i = int(options.argmin())
            if options[i] < following[j] - 1e-15:
                following[j], parent[j] = options[i], i
        parents.append(parent)
        best = following
    chosen, j = [n - 1], n - 1
    for parent in reversed(parents):
        if parent[j] >= 0:
            j = int(parent[j])
            chosen.append(j)
    buckets = tuple((int(sizes[i]),) for i in sorted(chosen))
    value = float(best[-1])
    return Choice(buckets, value, value, "dynamic-programming")


def _several_dims(observed: Observed, k: int, cost: Cost) -> Choice:
    sizes, coarse = observed.sizes, False
    axes = [np.unique(sizes[:, d]) for d in range(sizes.shape[1])]
    while math.prod(map(len, axes)) > GRID:
        widest = max(range(len(axes)), key=lambda d: len(axes[d]))
        axes[widest] = axes[widest][::-1][::2][::-1]  # every second size, the largest kept
        coarse = True
    boxes = np.array(list(itertools.product(*axes)))
    holds: np.ndarray = np.asarray((boxes[None, :, :] >= sizes[:, None, :]).all(axis=2))
    tight = holds.any(axis=0)
    boxes, holds = boxes[tight], holds[:, tight]
    costs = np.array([cost(tuple(map(int, b))) for b in boxes])
    table = np.where(holds, costs[None, :], math.inf) * 1.0
    weights = observed.weights
    k = min(k, len(boxes))
    top = int(np.flatnonzero((boxes == boxes.max(axis=0)).all(axis=1))[0])
    # Every shape must fit somewhere. The largest box is not always needed (a tall one and a wide one may do), so it is not forced.
    if math.comb(len(boxes), k) <= ENUMERATE:
        chosen, value = _enumerate(table, weights, k)
        return Choice(_sorted(boxes, chosen), value, value, "enumeration", coarse)
    chosen, value = _exchange(table, weights, k, top)
    bound = _lagrange(table, weights, k, value)
    return Choice(_sorted(boxes, chosen), value, min(bound, value), "exchange+lagrange", coarse)


def _sorted(boxes: np.ndarray, chosen: Sequence[int]) -> tuple[Box, ...]:
    return tuple(sorted(tuple(int(s) for s in boxes[i]) for i in chosen))


def _value(table: np.ndarray, weights: np.ndarray, chosen: Sequence[int]) -> float:
    return float((weights * table[:, list(chosen)].min(axis=1)).sum())


def _enumerate(table: np.ndarray, weights: np.ndarray, k: int) -> tuple[list[int], float]:
    best, value = [], math.inf
    for subset in itertools.combinations(range(table.shape[1]), k):
        found = _value(table, weights, subset)
        if found < value:
            best, value = list(subset), found
    return best, value


def _exchange(table: np.ndarray, weights: np.ndarray, k: int, top: int) -> tuple[list[int], float]:
    """Greedy from the largest box, then single exchanges until none helps."""
    chosen = [top]
    current = table[:, top].copy()
    while len(chosen) < k:
        gains = (weights[:, None] * np.minimum(current[:, None], table)).sum(axis=0)
        best = int(gains.argmin())
        if best in chosen:
            break
        chosen.append(best)
        current = np.minimum(current, table[:, best])
    value = _value(table, weights, chosen)
    improved = True
    while improved:
        improved = False
        for position in range(len(chosen)):
            rest = [c for i, c in enumerate(chosen) if i != position]
            without = table[:, rest].min(axis=1) if rest else np.full(len(table), math.inf)
            totals = (weights[:, None] * np.minimum(without[:, None], table)).sum(axis=0)
            best = int(totals.argmin())
            if totals[best] < value - 1e-12:
                chosen[position], value, improved = best, float(totals[best]), True
    return sorted(set(chosen)), value


def _lagrange(table: np.ndarray, weights: np.ndarray, k: int, upper: float, steps: int = 300) -> float:
    """Lower bound of the k-median problem: relax 'each shape is assigned once' with multipliers u, improve u by subgradient steps."""
    assigned = weights[:, None] * table
    multipliers = assigned.min(axis=1) * 1.0
    best, scale = -math.inf, 2.0
    stalled = 0
    for _step in range(steps):
        reduced = np.minimum(0.0, np.where(np.isfinite(assigned), assigned - multipliers[:, None], 0.0))
        savings = reduced.sum(axis=0)
        opened = np.argpartition(savings, k - 1)[:k] if k < len(savings) else np.arange(len(savings))
        value = float(multipliers.sum() + savings[opened].sum())
        if value > best + 1e-12:
            best, stalled = value, 0
        else:
            stalled += 1
            if stalled >= 15:
                scale, stalled = scale / 2, 0
        gradient = 1.0 - (reduced[:, opened] < 0).sum(axis=1)
        norm = float((gradient**2).sum())
        if norm == 0 or scale < 1e-4:
            break
        multipliers = np.maximum(0.0, multipliers + scale * max(upper - value, 1e-12) / norm * gradient)
    return best


def powers_of_two(observed: Observed, k: int) -> tuple[Box, ...]:
    """What people do: the k largest powers of two up to the first that covers the largest size, in all dims at once."""
    tops = [2 ** math.ceil(math.log2(max(1, s))) for s in observed.largest]
    boxes = {tuple(max(1, top >> i) for top in tops) for i in range(k)}
    return tuple(sorted(boxes))


def equal_steps(observed: Observed, k: int) -> tuple[Box, ...]:
    """k equal steps up to the largest size."""
    return tuple(sorted({tuple(math.ceil(s * (i + 1) / k) for s in observed.largest) for i in range(k)}))


def single_maximum(observed: Observed) -> tuple[Box, ...]:
    """Everything padded to the largest size."""
    return (observed.largest,)
