"""npulift migrate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npulift.commands.options import Debug, FailOn, Html, Json, Quiet, finish
from npulift.findings import Severity
from npulift.messages import _


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("migrate", help=_("Turn a CUDA script into an NPU script; shows a diff, --write makes it."))(migrate)


def migrate(
    script: Annotated[list[Path], typer.Argument(metavar="SCRIPT...", help=_("Python files, or folders of them."))],
    write: Annotated[bool, typer.Option("--write", help=_("Change the files; without it only the diff is shown."))] = False,
    fail_on: FailOn = Severity.ERROR,
    json: Json = None,
    html: Html = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Migrate scripts."""
    from npulift.migrate import migrate as run

    finish(run(script, write=write), json=json, html=html, quiet=quiet, fail_on=fail_on)
