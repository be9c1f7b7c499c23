"""Lengths of unions of time intervals, in whole arrays at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


def union_length(starts: Times, ends: Times) -> int:
    """Total time covered by the intervals; `starts` ascending."""
    if not len(starts):
        return 0
    reach = np.maximum.accumulate(ends)
    gaps = np.maximum(0, starts[1:] - reach[:-1]).sum()
    return int(reach[-1] - starts[0] - gaps)


def merged(starts: Times, ends: Times) -> tuple[Times, Times]:
    """The union as disjoint intervals; `starts` ascending."""
    if not len(starts):
        return starts, ends
    reach = np.maximum.accumulate(ends)
    new = np.empty(len(starts), dtype=bool)
    new[0] = True
    new[1:] = starts[1:] > reach[:-1]
    first = np.flatnonzero(new)
    last = np.append(first[1:] - 1, len(starts) - 1)
    return starts[first], reach[last]


def overlap_length(a: tuple[Times, Times], b: tuple[Times, Times]) -> int:
    """Time covered by both of two lists of disjoint ascending intervals."""
    if not len(a[0]) or not len(b[0]):
        return 0
    edges = np.unique(np.concatenate([*a, *b]))
    middle = edges[:-1]

    def inside(pair: tuple[Times, Times]) -> NDArray[np.bool_]:
        at = np.searchsorted(pair[0], middle, side="right") - 1
        return (at >= 0) & (middle < pair[1][np.maximum(at, 0)])

    return int((np.diff(edges)[inside(a) & inside(b)]).sum())
