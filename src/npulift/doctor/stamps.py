"""The time and the rank of a log line, in the forms that Ascend logs, Python logging, glog and launchers write them."""

from __future__ import annotations

import calendar
import re

_FULL = re.compile(r"(20\d\d)[-/](\d\d)[-/](\d\d)[ T-](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,3}))?")
_AMERICAN = re.compile(r"\b(\d\d)/(\d\d)/(20\d\d) (\d\d):(\d\d):(\d\d)")
_GLOG = re.compile(r"\[?[IWEF](\d\d?)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,3}))?")
_MONTH_DAY = re.compile(r"\b([01]\d)-([0-3]\d) ([0-2]\d):([0-5]\d):([0-5]\d)")
_CLOCK = re.compile(r"(?<![\d:])([0-2]?\d):([0-5]\d):([0-5]\d)(?:[.,](\d{1,3}))?(?![\d:])")
_RANK = re.compile(r"\[[Rr]ank[ :]?(\d{1,5})\]|RankID:(\d{1,5})|Worker_TP(\d{1,4})|VllmWorker(?: TP|[ _]rank=)(\d{1,4})|\[1,(\d{1,5})\]<std|\brank[ =:]{1,2}(\d{1,5})\b")
_FILE_RANK = re.compile(r"(?:rank|worker|device|npu|card)[-_. ]?(\d{1,5})(?!\d)", re.IGNORECASE)


def time_of(text: str) -> tuple[float | None, bool]:
    """(seconds, has a date) of a line; looks at its first 400 characters. A date without a year counts as 1970."""
    text = text[:400]
    found = _FULL.search(text)
    if found:
        year, month, day, *clock = found.groups()
        return _seconds(int(year), int(month), int(day), clock), True
    found = _AMERICAN.search(text)
    if found:
        month, day, year, *clock = found.groups()
        return _seconds(int(year), int(month), int(day), [*clock, None]), True
    found = _GLOG.search(text) or _MONTH_DAY.search(text)
    if found:
        month, day, *clock = found.groups()
        return _seconds(1970, int(month), int(day), [*clock, None][:4]), True
    found = _CLOCK.search(text)
    if found:
        hour, minute, second, fraction = found.groups()
        return int(hour) * 3600 + int(minute) * 60 + int(second) + _fraction(fraction), False
    return None, False


def rank_of(text: str, file: str = "") -> int | None:
    """The rank that a line names, else the one that its file's name has, else None."""
    found = _RANK.search(text[:400])
    if found:
        return int(next(g for g in found.groups() if g is not None))
    name = _FILE_RANK.search(file.replace("\\", "/").rpartition("/")[2])
    return int(name.group(1)) if name else None


def _seconds(year: int, month: int, day: int, clock: list[str | None]) -> float:
    hour, minute, second, fraction = clock
    try:
        return calendar.timegm((year, month, day, int(hour or 0), int(minute or 0), int(second or 0))) + _fraction(fraction)
    except (ValueError, OverflowError):
        return 0.0


def _fraction(text: str | None) -> float:
    return int(text) / 10 ** len(text) if text else 0.0
