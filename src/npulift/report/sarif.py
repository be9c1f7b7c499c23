"""SARIF 2.1.0 (OASIS standard): findings where a code host shows them, on the user's lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npulift import __version__
from npulift.findings import Finding
from npulift.report.document import Report

_LEVELS = {"info": "note", "warning": "warning", "error": "error"}


def log(report: Report) -> dict[str, Any]:
    """The SARIF log of a report: one run, a rule for each code, a result for each finding."""
    rules = {f.code: {"id": f.code, "name": f.name, "shortDescription": {"text": f.name.replace("-", " ")}} for f in report.findings}
    order = list(rules)
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "npulift", "version": __version__, "rules": list(rules.values())}},
                "columnKind": "unicodeCodePoints",
                "results": [_result(f, order.index(f.code)) for f in report.findings],
            }
        ],
    }


def _result(finding: Finding, rule: int) -> dict[str, Any]:
    text = finding.message + (f"\n{finding.fix}" if finding.fix else "")
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": _LEVELS[finding.severity.value],
        "message": {"text": text},
        "properties": {"module": finding.module or None, "costShare": finding.cost_share, "kind": finding.kind and finding.kind.value},
    }
    if finding.location:
        region = {"startLine": max(1, finding.location.line)}
        place = {"artifactLocation": {"uri": _uri(finding.location.file)}, "region": region}
        result["locations"] = [{"physicalLocation": place}]
    return result


def _uri(file: str) -> str:
    path = Path(file)
    try:
        return path.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_uri() if path.is_absolute() else path.as_posix()
