"""Reading logs of any size in a stream, and handing on only the lines that hold one of the literals sought.

Hostile input is met here: binary files are passed over, lines are cut to windows, control and escape characters are taken out, links out
of a folder are not followed, and no more than a few megabytes are held at a time.
"""

from __future__ import annotations

import gzip
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from npulift.doctor.records import Line
from npulift.doctor.stamps import rank_of, time_of
from npulift.errors import NpuliftError
from npulift.messages import _

CHUNK = 4 * 1024 * 1024  # bytes read at a time
WINDOW = 4096  # characters of a line matched at a time
LONGEST = 64 * WINDOW  # characters of a line that are looked at
MOST_FILES = 10_000
MOST_UTF16 = 32 * 1024 * 1024  # bytes read of a file in UTF-16, which is held at once
_CONTROL = re.compile("\x1b\\][^\x07\x1b]{0,1000}(?:\x07|\x1b\\\\)?|\x1b\\[[0-?]{0,32}[ -/]{0,8}[@-~]?|\x1b[ #%()*+./-][0-9A-Za-z]?|\x1b.|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_NOT_LOGS = frozenset(
    [".pt", ".pth", ".bin", ".safetensors", ".onnx", ".pte", ".rknn", ".so", ".o", ".a", ".pyc", ".png", ".jpg", ".jpeg", ".gif", ".pdf", ".zip", ".tar", ".tgz", ".xz", ".bz2", ".whl", ".db", ".npy", ".npz", ".parquet", ".pkl", ".mp4"]
)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that was not read, and why."""

    file: str
    reason: str


def clean(text: str) -> str:
    """The text without escape sequences, control characters and direction marks (tabs become spaces)."""
    return _CONTROL.sub("", text.replace("\t", " "))


def log_files(names: list[str], skipped: list[Skipped]) -> Iterator[tuple[str, IO[bytes]]]:
    """(name, open file) of each file named, of each log in each folder named, and of standard input for '-'.

    Raises NpuliftError for a name that does not exist or may not be read.
    """
    for name in names:
        if name == "-":
            yield "<stdin>", sys.stdin.buffer
            continue
        path = Path(name)
        if path.is_dir():
            found = False
            for file in _in_folder(path, skipped):
                opened = _open(file, skipped, must=False)
                if opened is not None:
                    found = True
                    with opened:
                        yield str(file), opened
            if not found:
                raise NpuliftError(_("{path} holds no log. Name the log files, or the folder that has them (for Ascend ~/ascend/log).").format(path=clean(name)))
            continue
        opened = _open(path, skipped, must=True)
        if opened is not None:
            with opened:
                yield name, opened


def _in_folder(folder: Path, skipped: list[Skipped]) -> Iterator[Path]:
    count = 0
    for root, folders, files in os.walk(folder, followlinks=False):
        folders[:] = sorted(f for f in folders if f not in (".git", "__pycache__", "node_modules"))
        for name in sorted(files):
            path = Path(root) / name
            if path.is_symlink() or path.suffix.lower() in _NOT_LOGS or not path.is_file():
                continue
            count += 1
            if count > MOST_FILES:
                skipped.append(Skipped(str(folder), _("more than {n} files; the rest was left out").format(n=MOST_FILES)))
                return
            yield path


def _open(path: Path, skipped: list[Skipped], *, must: bool) -> IO[bytes] | None:
    try:
        if must and not path.exists():
            raise NpuliftError(_("There is no {path}. Name a log file, a folder of logs, or - for standard input.").format(path=clean(str(path))))
        file: Any = gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # noqa: SIM115 - the caller closes it
        return file  # type: ignore[no-any-return]
    except OSError as error:
        if must:
            raise NpuliftError(_("{path} cannot be read: {reason}.").format(path=clean(str(path)), reason=error.strerror or error)) from error
        skipped.append(Skipped(str(path), str(error.strerror or error)))
        return None


class Reader:
    """Streams files and hands each line that holds a literal to `sink`. A literal can be dropped while reading goes on.

    literals: what to look for.   sink: called with a Line.   progress: called with (file, bytes read so far).
    """

    def __init__(self, literals: set[str], sink: Callable[[Line], None], progress: Callable[[str, int], None] | None = None) -> None:
        self._literals = set(literals)
        self._sink = sink
        self._progress = progress
        self._find: Callable[[str], list[tuple[int, str]]] | None = None
        self.lines = 0
        self.bytes = 0

    def drop(self, literals: set[str]) -> None:
        """Look for these no longer."""
        self._literals -= literals
        self._find = None

    def read(self, name: str, file: IO[bytes], skipped: list[Skipped]) -> None:
        """Read one file to its end. A binary file and a damaged archive are skipped, with the reason in `skipped`."""
        shown, number, rest, first = clean(name), 1, b"", True
        while True:
            try:
                data = file.read(CHUNK)
            except (OSError, EOFError, ValueError) as error:  # a damaged .gz, a pipe that breaks
                skipped.append(Skipped(shown, _("stopped at line {n}: {reason}").format(n=number, reason=str(error)[:200])))
                break
            if first:
                first = False
                if data[:2] in (b"\xff\xfe", b"\xfe\xff"):  # what PowerShell's > writes
                    data += file.read(MOST_UTF16)
                    data = data.decode("utf-16", "replace").encode("utf-8", "replace")
                elif _binary(data[:65536]):
                    skipped.append(Skipped(shown, _("not a text file")))
                    return
            self.bytes += len(data)
            if self._progress is not None:
                self._progress(shown, self.bytes)
            end = data.rfind(b"\n") + 1
            if data and end == 0:  # a line longer than the chunk: keep its beginning only
                if len(rest) < LONGEST * 4:
                    rest += data[: LONGEST * 4]
                continue
            block, left = (rest + data[:end], data[end:]) if data else (rest, b"")
            if not block:
                break
            number += self._block(shown, number, block)
            rest = left
            if not data:
                break
        self.lines += number - 1

    def _block(self, name: str, number: int, block: bytes) -> int:
        text = block.decode("utf-8", "replace")
        if self._find is None:
            self._find = finder(self._literals)
        for offset, line in self._find(text):
            for piece in _windows(line):
                piece = clean(piece)
                if not piece.strip():
                    continue
                time, dated = time_of(piece)
                self._sink(Line(name, number + offset, piece, time, dated, rank_of(piece, name)))
        return text.count("\n") + (0 if text.endswith("\n") else 1)


def finder(literals: set[str]) -> Callable[[str], list[tuple[int, str]]]:
    """A function from a text to (line index, line) of each line with one of the literals."""
    ordered = sorted(literals)
    pattern = re.compile("|".join(re.escape(s) for s in ordered) or r"(?!)")

    def plainly(text: str) -> list[tuple[int, str]]:
        return [(i, line) for i, line in enumerate(text.split("\n")) if pattern.search(line)]

    def quickly(text: str) -> list[tuple[int, str]]:
        if len(text) < 200_000:
            return plainly(text)
        try:
            import polars
        except ImportError:
            return plainly(text)
        lines = polars.Series([text]).str.split("\n").explode()
        mask = lines.str.contains_any(ordered) if ordered else lines.is_null()
        where = mask.arg_true()
        return list(zip(where.to_list(), lines.gather(where).to_list(), strict=True))

    return quickly


def _windows(line: str) -> Iterator[str]:
    r"""The line in pieces of at most WINDOW characters that overlap; a line that holds '\n' written out (logs inside JSON) is split there."""
    line = line[:LONGEST].rstrip("\r")
    if "\r" in line:  # progress bars rewrite their line
        for piece in line.split("\r")[-64:]:
            yield from _windows(piece)
        return
    pieces = line.split("\\n") if line.count("\\n") > 1 else [line]
    for piece in pieces:
        if len(piece) <= WINDOW:
            yield piece
            continue
        for start in range(0, len(piece), WINDOW - 512):
            yield piece[start : start + WINDOW]


def _binary(head: bytes) -> bool:
    if not head:
        return False
    if head.startswith((b"\x7fELF", b"PK\x03\x04", b"\x1f\x8b", b"\x89PNG", b"SQLite format 3")):
        return True
    odd = sum(head.count(bytes([i])) for i in (*range(0, 7), *range(14, 27), *range(28, 32)))
    return odd > len(head) // 20 or head.decode("utf-8", "replace").count("\ufffd") > len(head) // 3
