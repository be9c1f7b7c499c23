"""A JSON file that is small enough to take whole, mended where its end is missing."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

from npulift.errors import NpuliftError
from npulift.messages import _
from npulift.profilers.head import Head

LIMIT = 1 << 30  # bytes; communication.json of a large job is some hundred MB


def read_object(head: Head) -> tuple[Any, bool, tuple[str, ...]]:
    """(value, truncated, notes). What a cut file still holds is closed and returned. Raises NpuliftError when nothing can be made of it."""
    if head.path.stat().st_size > LIMIT:
        raise NpuliftError(_("{path} is larger than {limit} MB; give the run's .db form or fewer steps instead.").format(path=head.path, limit=LIMIT >> 20))
    try:
        with (gzip.open if head.gzip else open)(head.path, "rb") as file:
            data = file.read(LIMIT)
    except (EOFError, zlib.error) as error:
        raise NpuliftError(_("{path} is not a whole gzip file ({reason}).").format(path=head.path, reason=error)) from error
    text = data.decode("utf-8-sig", errors="replace")
    try:
        return json.loads(text), False, ()
    except RecursionError as error:
        raise NpuliftError(_("{path} is nested too deeply to be a profiler's file.").format(path=head.path)) from error
    except ValueError:
        pass
    mended = _closed(text)
    if mended is None:
        raise NpuliftError(_("{path} is not JSON that can be read, not even in part.").format(path=head.path))
    return mended, True, (_("{file} ends early: what stands before the break was loaded.").format(file=head.path.name),)


def _closed(text: str) -> Any:
    """The value of a cut text: back to the last comma or opening bracket at which closing all that is open gives JSON."""
    stack: list[str] = []
    cuts: list[tuple[int, str]] = []
    in_string = escaped = False
    for i, c in enumerate(text):
        if in_string:
            if escaped:
                escaped = False
            elif c == "\\":
                escaped = True
            elif c == '"':
                in_string = False
        elif c == '"':
            in_string = True
        elif c in "[{":
            stack.append("]" if c == "[" else "}")
            if len(stack) > 200:
                return None
            cuts.append((i + 1, "".join(reversed(stack))))
        elif c in "]}":
            if not stack or stack.pop() != c:
                break
            cuts.append((i + 1, "".join(reversed(stack))))
        elif c == ",":
            cuts.append((i, "".join(reversed(stack))))
        if len(cuts) > 64:
            del cuts[:32]
    for at, closing in reversed(cuts):
        try:
            return json.loads(text[:at] + closing)
        except (ValueError, RecursionError):
            continue
    return None


def number(value: Any) -> float | None:
    """A finite number, also from text; None for anything else."""
    if isinstance(value, bool):
        return None
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return result if abs(result) < 1e300 else None
