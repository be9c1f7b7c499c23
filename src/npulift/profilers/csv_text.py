"""Tolerant CSV: every cell as text, columns by their canonical names, a cut last line left out and told.

Real files have a byte order mark, CRLF, tabs after numbers, N/A, quotes within quotes, renamed, added and missing columns, and may end anywhere.
"""

from __future__ import annotations

import csv
import os
import re
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from npulift.errors import NpuliftError
from npulift.messages import _

MISSING = ("", "N/A", "NA", "n/a", "NaN", "nan", "null", "None", "-", "--")


def canonical(header: str) -> str:
    """A header without case, blanks and punctuation; the unit in brackets stays: 'Start Time(us)' becomes 'starttime(us)'."""
    return re.sub(r"[\s_\-\"'\ufeff]+", "", header).lower().replace("（", "(").replace("）", ")").replace("μ", "u").replace("µ", "u")


@dataclass(frozen=True)
class Text:
    """A table of text cells.   columns: by canonical name.   truncated: the last line was cut and left out."""

    frame: pl.DataFrame
    truncated: bool = False
    bad_rows: int = 0

    def __len__(self) -> int:
        return self.frame.height

    def has(self, *names: str) -> bool:
        """True when every column is there."""
        return all(n in self.frame.columns for n in names)

    def first(self, *names: str) -> str | None:
        """The first of these columns that is there."""
        return next((n for n in names if n in self.frame.columns), None)

    def text(self, *names: str) -> pl.Expr:
        """The first of the columns that is there, stripped, missing marks as null; a null column when none is."""
        name = self.first(*names)
        if name is None:
            return pl.lit(None, dtype=pl.Utf8)
        cell = pl.col(name).str.strip_chars()
        return pl.when(cell.is_in(MISSING)).then(None).otherwise(cell)

    def number(self, *names: str) -> pl.Expr:
        """The same as float64; what is not a number is null."""
        name = self.first(*names)
        if name is None:
            return pl.lit(None, dtype=pl.Float64)
        value = pl.col(name).str.strip_chars().str.strip_suffix("%").cast(pl.Float64, strict=False)
        return pl.when(value.is_finite()).then(value)

    def integer(self, *names: str) -> pl.Expr:
        """The same as int64 (1.0 is 1)."""
        return self.number(*names).cast(pl.Int64, strict=False)

    def nanoseconds(self, units: dict[str, int]) -> pl.Expr:
        """The first column that is there, in ns, exactly: 16-digit microseconds do not survive float64."""
        for name, factor in units.items():
            if name in self.frame.columns:
                cell = pl.col(name).str.strip_chars()
                exact = (cell.cast(pl.Decimal(38, 6), strict=False) * factor).cast(pl.Int64, strict=False)
                rough = (cell.cast(pl.Float64, strict=False) * factor).cast(pl.Int64, strict=False)
                return pl.coalesce(exact, rough)
        return pl.lit(None, dtype=pl.Int64)


def header_of(head: bytes) -> tuple[list[str], str]:
    """(canonical column names, separator) of the first line of a file; ([], ',') when there is none."""
    text = head.decode("utf-8-sig", errors="replace")
    line = next((part for part in text.splitlines() if part.strip()), "")
    separator = max(",;\t|", key=lambda s: (line.count(s), s == ","))
    if not line.count(separator):
        return ([canonical(line)] if line else []), ","
    try:
        return [canonical(c) for c in next(csv.reader([line], delimiter=separator))], separator
    except (csv.Error, StopIteration):
        return [], ","


def read(path: Path, wanted: frozenset[str] | None = None) -> Text:
    """The file as text. wanted: canonical names to keep (all when None). Raises NpuliftError when it cannot be read at all."""
    with path.open("rb") as file:
        head = file.read(65536)
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - 65536))
        tail = file.read()
    columns, separator = header_of(head)
    if not columns:
        return Text(pl.DataFrame())
    names = _unique(columns)
    truncated = _is_cut(tail, separator, len(names), whole=size <= 65536)
    keep = [i for i, name in enumerate(names) if wanted is None or name in wanted]
    try:
        frame = pl.scan_csv(
            path, separator=separator, has_header=False, skip_rows=1, schema=dict.fromkeys(names, pl.Utf8), truncate_ragged_lines=True, ignore_errors=True, encoding="utf8-lossy",
            quote_char='"',
        ).select([names[i] for i in keep]).collect()
        bad = 0
    except (pl.exceptions.PolarsError, OSError, ValueError, pl.exceptions.PanicException):
        frame, bad = _slowly(path, separator, names, keep)
        truncated = truncated or bad > 0
    if truncated and frame.height:
        frame = frame.head(-1)
    frame = frame.filter(~pl.all_horizontal(pl.all().is_null())) if frame.width else frame
    return Text(frame, truncated, bad)


def _unique(columns: list[str]) -> list[str]:
    seen: dict[str, int] = {}
    names = []
    for column in columns:
        seen[column] = seen.get(column, 0) + 1
        names.append(column if seen[column] == 1 else f"{column}#{seen[column]}")
    return names


def _is_cut(tail: bytes, separator: str, width: int, whole: bool) -> bool:
    """True when the last line has no line end and fewer cells than the header, or an open quotation mark."""
    if tail.endswith((b"\n", b"\r")) or not tail.strip():
        return False
    lines = tail.decode("utf-8", errors="replace").splitlines()
    if whole and len(lines) < 2:
        return False
    last = lines[-1]
    if last.count('"') % 2:
        return True
    try:
        return len(next(csv.reader([last], delimiter=separator))) < width
    except (csv.Error, StopIteration):
        return True


def _slowly(path: Path, separator: str, names: list[str], keep: list[int]) -> tuple[pl.DataFrame, int]:
    """The same with Python's own reader, which takes files that the fast one refuses; (table, how many rows had too few cells)."""
    columns: list[list[str | None]] = [[] for _k in keep]
    bad = 0
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            rows = csv.reader((line.replace("\0", "") for line in file), delimiter=separator)
            next(rows, None)
            for row in rows:
                if not row:
                    continue
                bad = len(row) < len(names)
                for column, i in zip(columns, keep, strict=True):
                    column.append(row[i] if i < len(row) else None)
    except csv.Error:
        bad = True
    except OSError as error:
        raise NpuliftError(_("{path} cannot be read: {reason}.").format(path=path, reason=error.strerror or error)) from error
    return pl.DataFrame({names[i]: c for i, c in zip(keep, columns, strict=True)}, schema={names[i]: pl.Utf8 for i in keep}), int(bad)
