"""npulift record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npulift.commands.options import Debug, Html, Json, Quiet, finish
from npulift.messages import _


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("record", help=_("Run a script and write down the sizes that its model is called with, for --shapes."),
                context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(record)


def record(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help=_("The Python script; its own arguments follow after --."))],
    module: Annotated[str, typer.Option("--module", metavar="CLASS", help=_("Class of the module to watch; without it, outermost calls."))] = "",
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help=_("The CSV to write."))] = Path("shapes.csv"),
    json: Json = None,
    html: Html = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Record shapes."""
    from npulift.record import record as run

    finish(run(script, list(context.args), module, out), json=json, html=html, quiet=quiet)
