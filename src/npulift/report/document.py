"""Report: what a command has to say, apart from how it is shown. Any renderer takes any report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from npulift import __version__
from npulift.findings import Finding


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph; lines stay as they are."""

    text: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Labels and values, one a line."""

    title: str
    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows. Cells are shown with str(); numbers are aligned right. top: how many rows a terminal shows at the most."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    note: str = ""
    top: int = 20


@dataclass(frozen=True, slots=True)
class Code:
    """Source text or a diff. language: 'diff', 'python', 'console', ..."""

    text: str
    title: str = ""
    language: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart for the HTML report; terminals leave it out (its figures stand in a table as well).

    figure: a plotly figure as a dictionary: {'data': [traces], 'layout': {...}}.
    """

    title: str
    figure: dict[str, Any]
    note: str = ""


Section = Text | Facts | Table | Code | Chart


@dataclass(frozen=True)
class Report:
    """What a command found.

    command: the verb.   title: one line.   ok: False when the work failed (exit code 1).
    subject: {'model': ...} or {'input': ...}.   target: target name or ''.
    findings: in the order in which they are to be shown.   data: further JSON keys of this command.
    sections: what people read, in order; findings are shown by the renderer and need no section.
    """

    command: str
    title: str
    subject: dict[str, Any]
    target: str = ""
    ok: bool = True
    findings: tuple[Finding, ...] = ()
    data: dict[str, Any] = field(default_factory=dict)
    sections: tuple[Section, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The contract's keys, then this command's own."""
        return {
            "npulift_version": __version__,
            "command": self.command,
            **self.subject,
            "target": self.target or None,
            "ok": self.ok,
            "findings": [f.as_json() for f in self.findings],
            **self.data,
        }
