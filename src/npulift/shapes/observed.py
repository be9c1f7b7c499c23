"""Observed shapes: a table of sizes by named dim, with how often each was seen."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from npulift.errors import NpuliftError
from npulift.messages import _

LIMIT = 5_000_000  # rows that are read at the most


@dataclass(frozen=True)
class Observed:
    """dims: names. sizes: distinct shapes x dims, int64, sorted. counts: how often each was seen."""

    dims: tuple[str, ...]
    sizes: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, dims: Sequence[str], shapes: Iterable[Sequence[int]]) -> Observed:
        """From an iterable of sizes. Raises NpuliftError when it is empty or a size is not positive."""
        counted = Counter(tuple(int(s) for s in shape) for shape in shapes)
        return cls._counted(dims, counted)

    @classmethod
    def _counted(cls, dims: Sequence[str], counted: Counter[tuple[int, ...]]) -> Observed:
        if not counted:
            raise NpuliftError(_("There are no shapes to choose buckets for."))
        ordered = sorted(counted)
        sizes = np.array(ordered, dtype=np.int64)
        if (sizes < 1).any():
            raise NpuliftError(_("Sizes must be at least 1."))
        return cls(tuple(dims), sizes, np.array([counted[s] for s in ordered], dtype=np.float64))

    @classmethod
    def read(cls, path: Path | str) -> Observed:
        """From a CSV with a column a dim, and, if wanted, a column 'count'. Raises NpuliftError with the row that is wrong."""
        counted: Counter[tuple[int, ...]] = Counter()
        try:
            with open(path, newline="", encoding="utf-8-sig") as file:
                reader = csv.reader(file)
                header = [h.strip() for h in next(reader, [])]
                dims = [h for h in header if h != "count"]
                if not dims or len(set(header)) != len(header) or not all(d.isidentifier() for d in dims):
                    raise NpuliftError(_("{path} needs a header that names the dims, e.g. 'length' or 'height,width,count'.").format(path=path))
                for number, row in enumerate(reader, 2):
                    if not row or not any(cell.strip() for cell in row):
                        continue
                    if number > LIMIT:
                        raise NpuliftError(_("{path} has more than {limit} rows; give counts instead of repeating rows.").format(path=path, limit=LIMIT))
                    try:
                        cells = dict(zip(header, map(int, row), strict=True))
                    except ValueError as error:
                        raise NpuliftError(_("{path}, row {row}: {error}.").format(path=path, row=number, error=error)) from error
                    counted[tuple(cells[d] for d in dims)] += cells.get("count", 1)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise NpuliftError(_("{path} cannot be read as CSV: {error}.").format(path=path, error=error)) from error
        return cls._counted(dims, counted)

    @property
    def weights(self) -> np.ndarray:
        """Shares, which sum to 1."""
        return np.asarray(self.counts / self.counts.sum())

    @property
    def largest(self) -> tuple[int, ...]:
        """The largest size of each dim."""
        return tuple(int(s) for s in self.sizes.max(axis=0))
