"""Where a report goes: terminal, JSON, SARIF, HTML. Each renderer is a file of its own; this one only calls them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from npulift.files import write_text
from npulift.report.document import Report


def terminal(report: Report) -> None:
    """Print for people."""
    from npulift.report.terminal import show

    show(report)


def json_file(report: Report, path: Path) -> None:
    """Write the JSON form; '-' is standard output."""
    text = json.dumps(_plain(report.as_json()), ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    if str(path) == "-":
        sys.stdout.write(text)
    else:
        write_text(path, text)


def html_file(report: Report, path: Path) -> None:
    """Write one self-contained HTML file."""
    from npulift.report.html import page

    write_text(path, page(report))


def sarif_file(report: Report, path: Path) -> None:
    """Write SARIF 2.1.0, which code hosts show on the user's lines; '-' is standard output."""
    from npulift.report.sarif import log

    text = json.dumps(_plain(log(report)), ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    if str(path) == "-":
        sys.stdout.write(text)
    else:
        write_text(path, text)


def _plain(value: Any) -> Any:
    """JSON has no infinity and no NaN: they become null. NumPy numbers become Python's."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    if isinstance(value, bool | str | int) or value is None:
        return value
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        return _plain(value.item())
    if isinstance(value, float):
        return value if value == value and value not in (float("inf"), float("-inf")) else None
    return str(value)
