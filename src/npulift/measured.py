"""Figures and how they were come by. Figures of different kinds are never compared with each other."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from enum import Enum


class Kind(str, Enum):
    """How a figure was come by."""

    MEASURED = "measured"  # it ran on the device named
    SIMULATED = "simulated"  # a vendor's simulator, or ours, ran it
    VENDOR_ESTIMATE = "vendor-estimate"  # a vendor's performance model
    PREDICTED = "predicted"  # our own cost model

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Measured:
    """A duration of one inference (or one step) and how it was come by.

    seconds: one entry a timing round (s an inference), warm-up left out; one entry alone for an estimate.
    device: what it ran on, or is estimated for, e.g. 'CPU' or 'ethos-u85-256'.
    """

    seconds: tuple[float, ...]
    kind: Kind
    device: str

    @property
    def median(self) -> float:
        """Median over the rounds, in seconds."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Interquartile range over the median (dimensionless); 0.0 where there is one figure only."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / self.median if self.median else 0.0

    def as_json(self) -> dict[str, object]:
        """{'median_s', 'spread', 'kind', 'device', 'rounds'}"""
        return {
            "median_s": self.median,
            "spread": round(self.spread, 4),
            "kind": self.kind.value,
            "device": self.device,
            "rounds": len(self.seconds),
        }
