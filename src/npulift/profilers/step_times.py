"""How step times run: a first step that is much longer, later spikes, growth."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import polars as pl


@dataclass(frozen=True)
class Steps:
    """Step times of one rank in order. later: median of all but the first. ratio: first over later. spikes: (step, seconds) of later ones over 3 medians."""

    rank: int | None
    seconds: tuple[float, ...]
    numbers: tuple[int, ...]
    chip: str
    files: tuple[int | None, ...]

    @property
    def later(self) -> float:
        """Median of all steps but the first, s."""
        return median(self.seconds[1:]) if len(self.seconds) > 1 else self.seconds[0]

    @property
    def ratio(self) -> float:
        """First step over the median of the later ones."""
        return self.seconds[0] / self.later if self.later > 0 else 1.0

    @property
    def spikes(self) -> list[tuple[int, float]]:
        """Later steps that take over three times the median."""
        return [(n, s) for n, s in zip(self.numbers[1:], self.seconds[1:], strict=True) if s > 3 * self.later]

    @property
    def grows(self) -> bool | None:
        """Whether the number of compiled files still grows after the first step; None when it was not written down."""
        counts = [f for f in self.files if f is not None]
        return None if len(counts) < 2 else counts[-1] > counts[0]


def step_times(table: pl.DataFrame) -> list[Steps]:
    """The table of step times, a record a rank."""
    found = []
    for part in table.partition_by("rank", maintain_order=True) if table.height else []:
        part = part.sort("step", nulls_last=True, maintain_order=True) if part["step"].null_count() == 0 else part
        seconds = tuple(float(s) for s in part["seconds"])
        if len(seconds) < 2:
            continue
        numbers = tuple(int(n) if n is not None else i for i, n in enumerate(part["step"]))
        chip = next((c for c in part["chip"] if c), "")
        found.append(Steps(part["rank"][0], seconds, numbers, chip, tuple(part["compiled_files"])))
    return found
