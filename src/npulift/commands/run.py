"""npulift run."""

from __future__ import annotations

from typing import Annotated

import typer

from npulift.messages import _


def register(app: typer.Typer) -> None:
    """Add the command; everything after the script belongs to the script."""
    app.command(
        "run", help=_("Run a script as Python would, and explain its error under the traceback."),
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []},
    )(run)


def run(context: typer.Context, script: Annotated[str, typer.Argument(metavar="SCRIPT [ARGUMENTS]", help=_("A Python file; what follows goes to it."))]) -> None:
    """Run a script."""
    from npulift.run import run as start

    raise typer.Exit(start(script, list(context.args)))
