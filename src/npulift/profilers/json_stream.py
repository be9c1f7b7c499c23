"""A JSON array of objects in pieces: never the whole file in memory, a missing end told, a broken object skipped and counted.

Finds the array (bare, or under 'traceEvents'), cuts the text between two objects every few megabytes, and lets msgspec decode each piece
into the few fields that are wanted. A piece that msgspec refuses is read object by object with Python's own, more tolerant decoder.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

CHUNK = 8 << 20  # bytes read at a time
LONGEST = 256 << 20  # bytes that one object may take
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')


@dataclass
class Ending:
    """How the stream ended; filled in while it is read."""

    truncated: bool = False
    bad: int = 0
    trailer: bytes = b""
    header: bytes = b""
    problems: list[str] = field(default_factory=list)


def opened(path: Path) -> IO[bytes]:
    """The file for reading, unpacked where it is gzip."""
    file = path.open("rb")
    if file.read(2) == b"\x1f\x8b":
        file.close()
        return gzip.open(path)  # type: ignore[return-value]
    file.seek(0)
    return file


def pieces(path: Path, ending: Ending, start: int = 0, stop: int | None = None, chunk: int = CHUNK) -> Iterator[bytes]:
    """Texts of whole objects with commas between them, without the brackets around.

    start, stop: byte range to read, both between two objects (see `split`); 0 and None for all of the file.
    """
    with opened(path) as file:
        buffer = b""
        position = start
        if start:
            file.seek(start)
            inside = True
        else:
            inside = False
        while True:
            size = chunk if stop is None else min(chunk, stop - position)
            try:
                block = file.read(size) if size > 0 else b""
            except (EOFError, zlib.error, gzip.BadGzipFile):
                block = b""
                ending.truncated = True
            position += len(block)
            buffer += block
            if not inside:
                inside, buffer = _enter(buffer, ending)
                if not inside:
                    if not block or len(buffer) > LONGEST:
                        ending.trailer = buffer
                        ending.truncated = bool(buffer.strip())
                        return
                    continue
            if not block:
                yield from _last(buffer, ending, whole=stop is None)
                return
            cut = _last_gap(buffer)
            if cut is None:
                if len(buffer) > LONGEST:
                    ending.problems.append("object too long")
                    ending.truncated = True
                    return
                continue
            yield buffer[: cut[0]]
            buffer = buffer[cut[1]:]


def _enter(buffer: bytes, ending: Ending) -> tuple[bool, bytes]:
    """Skip what stands before the first object: a bracket, or a header up to traceEvents."""
    text = buffer.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"["):
        return True, text[1:]
    match = _EVENTS.search(buffer)
    if match:
        ending.header = buffer[: match.start()].strip()
        return True, buffer[match.end():]
    return False, buffer


def _last_gap(buffer: bytes) -> tuple[int, int] | None:
    """(end of an object, start of the next) for the last gap between two objects in the buffer; None when there is none."""
    window = len(buffer)
    while True:
        low = max(0, window - (1 << 16))
        last = None
        for last in _BETWEEN.finditer(buffer, low, min(len(buffer), window + 64)):  # noqa: B007 - the last one is wanted
            pass
        if last is not None:
            return last.start() + 1, last.end() - 1
        if low == 0:
            return None
        window = low


def _last(buffer: bytes, ending: Ending, whole: bool) -> Iterator[bytes]:
    """What is left at the end: up to the closing bracket, or up to the last whole object."""
    text = buffer.strip()
    if not whole:
        yield text.rstrip(b", \r\n\t")
        return
    end = text.rfind(b"]")
    if end >= 0 and _closes(text, end):
        body = text[:end].rstrip(b", \r\n\t")
        ending.trailer = text[end + 1:]
        if body:
            yield body
        return
    closing = _array_end(text)
    if closing is not None:
        ending.trailer = text[closing + 1:]
        body = text[:closing].rstrip(b", \r\n\t")
        if body:
            yield body
        return
    ending.truncated = True
    if text:
        yield text  # the tolerant decoder takes the whole objects out of it


def _closes(text: bytes, end: int) -> bool:
    """True when the bracket at `end` plainly closes the array: it follows an object, or nothing, and only '}' or nothing comes after."""
    before, after = text[:end].rstrip(), text[end + 1:].strip()
    return (not before or before.endswith((b"}", b","))) and after in (b"", b"}") and not before.endswith(b"[")


def _array_end(text: bytes) -> int | None:
    """Position of the bracket that closes the array in which `text` begins, by counting depth outside strings; None when it is open."""
    depth, in_string, i, n = 0, False, 0, len(text)
    for match in re.finditer(rb'["\\\[\]{}]', text):
        if match.start() < i:
            continue
        c = match.group()
        if in_string:
            if c == b"\\":
                i = match.start() + 2
            elif c == b'"':
                in_string = False
        elif c == b'"':
            in_string = True
        elif c in b"[{":
            depth += 1
        elif c in b"]}":
            if depth == 0:
                return match.start() if c == b"]" else None
            depth -= 1
    return None if n else 0


def tolerant(text: bytes, ending: Ending) -> list[dict[str, Any]]:
    """Every object that can be decoded, in order; what cannot be is skipped up to the next object and counted."""
    decoder = json.JSONDecoder(strict=False)
    content = text.decode("utf-8", errors="replace")
    found: list[dict[str, Any]] = []
    i, n = 0, len(content)
    while i < n:
        i = content.find("{", i)
        if i < 0:
            break
        try:
            value, i = decoder.raw_decode(content, i)
            if isinstance(value, dict):
                found.append(value)
        except (json.JSONDecodeError, RecursionError):
            match = re.compile(r"\}\s*,\s*\{").search(content, i + 1)
            if match is None:
                ending.bad += 0 if ending.truncated else 1
                break
            ending.bad += 1
            i = match.end() - 1
    return found


def split(path: Path, parts: int) -> list[tuple[int, int | None]]:
    """Byte ranges of about equal size that begin and end between two events, for reading in parallel; one range when it cannot be cut."""
    size = path.stat().st_size
    bounds = [0]
    with path.open("rb") as file:
        if file.read(2) == b"\x1f\x8b":
            return [(0, None)]
        for k in range(1, parts):
            file.seek(size * k // parts)
            block = file.read(1 << 20)
            for match in _BETWEEN.finditer(block):
                start = match.end() - 1
                following = block[start: start + 4096]
                if re.match(rb'\{\s*"(?:ph|name|cat|pid|tid|ts)"', following) and _whole_event(following):
                    bounds.append(size * k // parts + start)
                    break
            else:
                return [(0, None)]
    return list(zip(bounds, [*bounds[1:], None], strict=True))  # type: ignore[list-item]


def _whole_event(text: bytes) -> bool:
    try:
        value, _end = json.JSONDecoder().raw_decode(text.decode("utf-8", errors="replace"))
    except (json.JSONDecodeError, RecursionError):
        return False
    return isinstance(value, dict) and "ph" in value
