"""What a rule found: a severity, the user's line, what it costs, what to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from npulift.measured import Kind


class Severity(str, Enum):
    """Ordered from harmless to fatal; `--fail-on` takes one of the names."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    def __str__(self) -> str:
        return self.value

    @property
    def rank(self) -> int:
        """0 for info, 1 for warning, 2 for error."""
        return ("info", "warning", "error").index(self.value)


@dataclass(frozen=True, slots=True)
class Location:
    """A place in source code. line counts from 1; 0 when only the file is known."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a rule, a compiler or a reader has to say about the user's model, script or log.

    code: stable identifier, e.g. 'NPU203'.   name: kebab-case name of the rule, e.g. 'host-sync'.
    message: one or two sentences, already in the user's language.   fix: what to do, the same.
    location: the user's line, or None when there is none.   module: dotted module path, '' at the top.
    cost_share: share of the whole time that this costs, 0 to 1, or None when unknown; kind says where that figure comes from.
    details: further facts by key, JSON types only (counts, operator names, shapes, differences).
    """

    code: str
    name: str
    severity: Severity
    message: str
    location: Location | None = None
    module: str = ""
    fix: str = ""
    cost_share: float | None = None
    kind: Kind | None = None
    details: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The form that the contract of the command line promises; details are added under their own key."""
        return {
            "code": self.code,
            "name": self.name,
            "severity": self.severity.value,
            "message": self.message,
            "file": self.location.file if self.location else None,
            "line": self.location.line if self.location else None,
            "module": self.module or None,
            "cost_share": self.cost_share,
            "kind": self.kind.value if self.kind else None,
            "fix": self.fix,
            "details": self.details,
        }


def at_or_above(findings: list[Finding] | tuple[Finding, ...], severity: Severity) -> list[Finding]:
    """The findings at least as severe as `severity`."""
    return [f for f in findings if f.severity.rank >= severity.rank]
