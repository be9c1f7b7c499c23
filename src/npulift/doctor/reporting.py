"""The doctor's results as a Report, so that any renderer shows them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from npulift.doctor.diagnose import Diagnosis, verdict
from npulift.doctor.reading import clean
from npulift.doctor.records import Cause
from npulift.findings import Finding, Location, Severity
from npulift.messages import _
from npulift.report.document import Facts, Report, Section, Table, Text

CODE = "DOCTOR"


def log_report(diagnosis: Diagnosis) -> Report:
    """What the logs say: the verdict, the order of events, each cause with its consequences and its fix."""
    causes = diagnosis.causes
    sections: list[Section] = [Text(verdict(causes))]
    if len(causes) > 1 or any(c.follows for c in causes):
        rows = []
        for cause in causes:
            first = cause.first
            rank = "" if first is None or first.rank is None else str(first.rank)
            rows.append((cause.id, _confidence(cause.confidence), rank, first.place if first else "", cause.count))
        sections.append(Table(_("In this order"), (_("cause"), _("how sure"), _("rank"), _("first seen"), _("lines")), tuple(rows), top=40))
    follows = [(cause.id, line) for cause in causes for line in cause.follows]
    if follows:
        sections.append(Table(_("What follows from it"), (_("cause"), _("consequence")), tuple(follows), top=12))
    more = [(cause.id, cause.more) for cause in causes if cause.more]
    if more:
        sections.append(Facts(_("Where more evidence would be"), tuple(more)))
    if diagnosis.skipped:
        sections.append(Table(_("Not read"), (_("file"), _("why")), tuple((s.file, s.reason) for s in diagnosis.skipped), top=10))
    size = f"{diagnosis.bytes / 1e6:.1f} MB" if diagnosis.bytes >= 100_000 else f"{diagnosis.bytes} B"
    title = _("{files} file(s), {lines} lines, {size} read").format(files=len(diagnosis.files), lines=diagnosis.lines, size=size)
    return Report(
        "doctor", title, {"input": [clean(f) for f in diagnosis.files]},
        findings=tuple(finding(c) for c in causes),
        data={
            "causes": [c.as_json() for c in causes], "verdict": verdict(causes),
            "skipped": [{"file": s.file, "reason": s.reason} for s in diagnosis.skipped],
            "lines": diagnosis.lines, "bytes": diagnosis.bytes,
        },
        sections=tuple(sections),
    )


def finding(cause: Cause) -> Finding:
    """A cause in the form that every command has."""
    first = cause.first
    sure = {"high": "", "medium": _(" (fairly sure)"), "low": _(" (a guess)")}[cause.confidence]
    return Finding(
        CODE, cause.id, cause.severity, cause.cause.strip() + sure,
        location=Location(first.file, first.number) if first else None,
        fix=steps(cause.fix), details={"confidence": cause.confidence, "count": cause.count, **cause.details})


def steps(fix: Iterable[str]) -> str:
    """Numbered lines; a single step has no number."""
    listed = list(fix)
    return listed[0] if len(listed) == 1 else "\n".join(["", *(f"    {i}. {step}" for i, step in enumerate(listed, 1))]) if listed else ""


def plain(report: Report) -> str:
    """The report as text without any package: for `python -m npulift.doctor` on a bare machine."""
    lines = [report.title]
    for section in report.sections:
        if isinstance(section, Text):
            lines += [section.text]
        elif isinstance(section, Facts):
            lines += ["", section.title, *(f"  {label}: {value}" for label, value in section.rows)]
        elif isinstance(section, Table):
            lines += ["", section.title]
            lines += ["  " + "  ".join(str(c) for c in row) for row in section.rows[: section.top]]
    for found in sorted(report.findings, key=lambda f: -f.severity.rank):
        lines += ["", f"{found.severity.value}: {found.name}" + (f"  ({found.location})" if found.location else ""), f"  {found.message}"]
        if found.fix:
            lines += [f"  {_('fix')}: {found.fix}"]
    return "\n".join(lines)


def _confidence(word: str) -> str:
    return {"high": _("sure"), "medium": _("fairly sure"), "low": _("a guess")}[word]


def failed(report: Report) -> bool:
    """Whether the report has an error."""
    return any(f.severity is Severity.ERROR for f in report.findings)


def as_json(report: Report) -> dict[str, Any]:
    """The JSON form."""
    return report.as_json()
