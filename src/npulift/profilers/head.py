"""Head: what a reader may look at before it says that a file is its own."""

from __future__ import annotations

import gzip
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from npulift.profilers.csv_text import header_of

_RANK_IN_FOLDER = re.compile(r"(?:^|[_.-])rank[_-]?(\d{1,5})(?:$|[_.-])", re.IGNORECASE)


@dataclass(frozen=True)
class Head:
    """The name and the first 64 KiB of a file (unpacked where it is gzip), and its columns where it is a table."""

    path: Path
    data: bytes
    columns: tuple[str, ...]
    separator: str
    gzip: bool

    @property
    def name(self) -> str:
        """The file's name in lower case."""
        return self.path.name.lower()

    @property
    def is_json(self) -> bool:
        """True when the text begins as JSON does."""
        return self.data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")

    def has(self, *columns: str) -> bool:
        """True when every canonical column is there."""
        return all(c in self.columns for c in columns)

    def any(self, *columns: str) -> bool:
        """True when one of the canonical columns is there."""
        return any(c in self.columns for c in columns)


def head_of(path: Path) -> Head:
    """Read the head. Raises OSError."""
    with path.open("rb") as file:
        data = file.read(65536)
    packed = data.startswith(b"\x1f\x8b")
    if packed:
        try:
            with gzip.open(path) as file:
                data = file.read(65536)
        except (OSError, EOFError, zlib.error):
            data = zlib.decompressobj(31).decompress(data, 65536) if len(data) > 20 else b""
    binary = data.startswith((b"SQLite format 3", b"PAR1")) or b"\0" in data[:4096]
    columns, separator = ([], ",") if binary or data.lstrip()[:1] in (b"{", b"[") else header_of(data)
    return Head(path, data, tuple(columns), separator, packed)


def rank_of(path: Path) -> int | None:
    """The rank that a file's name or one of its two folders gives ('kernel_details_3.csv' does not: single files carry time stamps)."""
    match = re.search(r"(?:profiler_info|ascend_pytorch_profiler|profiler_metadata)_(\d{1,5})\.", path.name)
    if match:
        return int(match.group(1))
    match = re.search(r"rank[_-]?(\d{1,5})(?!\d)", path.name, re.IGNORECASE)
    if match:
        return int(match.group(1))
    for folder in list(path.parents)[:3]:
        match = _RANK_IN_FOLDER.search(folder.name)
        if match:
            return int(match.group(1))
    return None
