"""The options that every command has, and the way every command ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from npulift.errors import NpuliftError
from npulift.findings import Severity, at_or_above
from npulift.messages import _, set_language
from npulift.report.document import Report

Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help=_("Write the result as JSON ('-' for standard output)."))]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help=_("Write the report as one self-contained HTML file."))]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help=_("Print nothing but errors."))]
Debug = Annotated[bool, typer.Option("--debug", help=_("Show whole tracebacks."))]
Seed = Annotated[int, typer.Option("--seed", help=_("Seed of everything that is random."))]
FailOn = Annotated[Severity, typer.Option("--fail-on", help=_("Exit with 1 when there is a finding at or above this severity."))]
Model = Annotated[str, typer.Argument(metavar="MODEL", help=_("file.py:factory, package.module:factory or a .pt2 file."))]
TargetName = Annotated[str, typer.Option("--target", "-t", help=_("Which hardware: see `npulift targets`."))]


def finish(
    report: Report,
    *,
    json: Path | None = None,
    html: Path | None = None,
    quiet: bool = False,
    fail_on: Severity | None = Severity.ERROR,
) -> None:
    """Show the report on the terminal, write it where asked, and exit with 0, or 1 when it is not ok or has a finding at `fail_on`."""
    from npulift.report import render

    if not quiet and str(json) != "-":
        render.terminal(report)
    if json is not None:
        render.json_file(report, json)
    if html is not None:
        render.html_file(report, html)
    if not report.ok or (fail_on is not None and at_or_above(report.findings, fail_on)):
        raise typer.Exit(1)


class Progress:
    """What is being done, on standard error; a bar where there is a terminal, plain lines where there is none, nothing when quiet."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: Any = None
        self._task: Any = None
        self._last = ""

    def __enter__(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        console = Console(stderr=True)
        if not self._quiet and console.is_terminal:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn())
            self._bar = Bar(*columns, console=console, transient=True)
            self._bar.start()
            self._task = self._bar.add_task("", total=None)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, text: str, done: float | None = None) -> None:
        """Say what goes on; done is the share that is finished, 0 to 1, or None when unknown."""
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.update(self._task, description=text, total=1.0 if done is not None else None, completed=done or 0.0)
        elif text != self._last:
            self._last = text
            typer.echo(f"  {text}", err=True)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch, NumPy and random."""
    import random

    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    yield


__all__ = ["Debug", "FailOn", "Html", "Json", "Model", "NpuliftError", "Progress", "Quiet", "Seed", "TargetName", "finish", "seeded", "set_language"]
