"""What the doctor reads and what it concludes: Line, Match, Cause."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from npulift.findings import Severity


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a log, with control characters taken out.

    number: from 1.   time: seconds since 1970 when the line has a date, seconds of the day when it has none, None without a time.
    dated: whether `time` has a date.   rank: process rank, from the line or else from the file's name.
    """

    file: str
    number: int
    text: str
    time: float | None = None
    dated: bool = False
    rank: int | None = None

    @property
    def place(self) -> str:
        """file:line."""
        return f"{self.file}:{self.number}"

    def shown(self, width: int = 240) -> str:
        """'file:line: text', the text cut to `width` characters."""
        text = self.text.strip()
        return f"{self.place}: {text if len(text) <= width else text[: width - 3] + '...'}"


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause, in plain words.

    id: stable, kebab-case.   confidence: 'high', 'medium' or 'low'.   fix: steps, the one with the least effort first.
    evidence: the lines that led here.   more: where more evidence would be.   follows: what else in the log is a consequence.
    first: the line by which it is placed in time.   count: how many lines said so.   fatal: whether it stopped the job.
    """

    id: str
    severity: Severity
    confidence: str
    cause: str
    fix: tuple[str, ...]
    evidence: tuple[Line, ...]
    more: str = ""
    source: str = ""
    count: int = 1
    follows: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def first(self) -> Line | None:
        """The earliest evidence."""
        return self.evidence[0] if self.evidence else None

    def as_json(self) -> dict[str, Any]:
        """The contract's keys, then more."""
        first = self.first
        return {
            "id": self.id,
            "cause": self.cause,
            "confidence": self.confidence,
            "severity": self.severity.value,
            "evidence": [line.shown() for line in self.evidence],
            "fix": "\n".join(f"{i}. {step}" for i, step in enumerate(self.fix, 1)),
            "fixes": list(self.fix),
            "more_evidence": self.more,
            "follows": list(self.follows),
            "count": self.count,
            "file": first.file if first else None,
            "line": first.number if first else None,
            "rank": first.rank if first else None,
            "time": first.time if first else None,
            "details": self.details,
            "source": self.source,
        }
