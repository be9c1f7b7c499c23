"""A report on the terminal."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table as RichTable

from npulift.findings import Finding, Severity
from npulift.messages import _, ngettext
from npulift.report.document import Code, Facts, Report, Section, Table, Text

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def show(report: Report, console: Console | None = None) -> None:
    """Print the report; findings come after the sections, most severe first."""
    console = console or Console(width=None if os.isatty(1) else 140, highlight=False)
    console.print(f"[bold]{escape(report.title)}[/bold]")
    for section in report.sections:
        _section(console, section)
    findings = sorted(report.findings, key=lambda f: (-f.severity.rank, -(f.cost_share or 0.0)))
    if findings:
        console.print()
        console.print("[bold]" + ngettext("{n} finding", "{n} findings", len(findings)).format(n=len(findings)) + "[/bold]")
    for finding in findings:
        _finding(console, finding)


def _section(console: Console, section: Section) -> None:
    if isinstance(section, Text):
        if section.title:
            console.print(f"\n[bold]{escape(section.title)}[/bold]")
        console.print(escape(section.text))
    elif isinstance(section, Facts):
        console.print(f"\n[bold]{escape(section.title)}[/bold]" if section.title else "")
        grid = RichTable.grid(padding=(0, 2))
        for label, value in section.rows:
            grid.add_row(f"[dim]{escape(label)}[/dim]", escape(value))
        console.print(grid)
    elif isinstance(section, Table):
        table = RichTable(title=escape(section.title) or None, title_justify="left", box=None, pad_edge=False, header_style="dim")
        for i, column in enumerate(section.columns):
            cells = [row[i] for row in section.rows]
            numeric = bool(cells) and all(_is_number(c) for c in cells)
            table.add_column(escape(column), justify="right" if numeric else "left", overflow="fold")
        for row in section.rows[: section.top]:
            table.add_row(*[escape(str(c)) for c in row])
        console.print()
        console.print(table)
        hidden = len(section.rows) - section.top
        if hidden > 0:
            console.print("[dim]" + ngettext("... and {n} more row", "... and {n} more rows", hidden).format(n=hidden) + "[/dim]")
        if section.note:
            console.print(f"[dim]{escape(section.note)}[/dim]")
    elif isinstance(section, Code):
        if section.title:
            console.print(f"\n[bold]{escape(section.title)}[/bold]")
        console.print(Syntax(section.text, section.language or "text", background_color="default"))


def _is_number(cell: Any) -> bool:
    text = str(cell).rstrip("%x ×").replace(",", "").replace(" ms", "").replace(" s", "").strip()
    try:
        float(text or "nan")
    except ValueError:
        return text in ("-", "—")
    return True


def _finding(console: Console, finding: Finding) -> None:
    severity = {"error": _("error"), "warning": _("warning"), "info": _("info")}[finding.severity.value]
    share = f"  {finding.cost_share:.1%} ({finding.kind})" if finding.cost_share is not None else ""
    console.print(f"[{_STYLES[finding.severity]}]{severity}[/] [bold]{finding.code} {escape(finding.name)}[/bold]{share}")
    if finding.location:
        module = f"  [dim]{escape(finding.module)}[/dim]" if finding.module else ""
        console.print(f"  {escape(_relative(finding.location.file))}:{finding.location.line}{module}", soft_wrap=True)
    console.print(f"  {escape(finding.message)}")
    if finding.fix:
        console.print(f"  [green]{_('fix')}:[/green] {escape(finding.fix)}")


def _relative(file: str) -> str:
    try:
        return str(Path(file).resolve().relative_to(Path.cwd()))
    except ValueError:
        return file
