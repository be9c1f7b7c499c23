"""A report as one HTML file that needs nothing else: style, data and the charting library (plotly) are inside."""

from __future__ import annotations

import html as _html
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from npulift import __version__
from npulift.messages import _, current_language, ngettext
from npulift.report.document import Chart, Code, Facts, Report, Table, Text

_SECTIONS = {Text: "text", Facts: "facts", Table: "table", Code: "code", Chart: "chart"}


def page(report: Report) -> str:
    """The whole page as text."""
    template = _environment().get_template("page.html")
    charts = [s for s in report.sections if isinstance(s, Chart)]
    return template.render(
        report=report,
        sections=[(_SECTIONS[type(s)], s) for s in report.sections],
        findings=sorted(report.findings, key=lambda f: (-f.severity.rank, -(f.cost_share or 0.0))),
        plotly=_plotly() if charts else "",
        language=current_language(),
        version=__version__,
        data=_json(report.as_json()),
    )


@lru_cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(_=_, ngettext=ngettext, json=_json)
    environment.filters["diff"] = _diff
    return environment


@lru_cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _json(value: Any) -> str:
    """JSON that may stand inside a <script> element."""
    from npulift.report.render import _plain

    text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _diff(text: str) -> str:
    """A unified diff with a class on each line, escaped."""
    lines = []
    for line in text.splitlines():
        kind = {"+": "add", "-": "del", "@": "hunk"}.get(line[:1], "")
        lines.append(f'<span class="{kind}">{_html.escape(line)}</span>')
    return "\n".join(lines)
