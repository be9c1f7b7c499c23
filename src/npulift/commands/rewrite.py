"""npulift rewrite."""

from __future__ import annotations

from typing import Annotated

import typer

from npulift.commands.options import Debug, Html, Json, Model, Progress, Quiet, Seed, finish, seeded
from npulift.messages import _


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rewrite", help=_("Rewrite control flow and data-dependent sizes in your source; shows a verified diff, --write makes it."))(rewrite)


def rewrite(
    model: Model,
    write: Annotated[bool, typer.Option("--write", help=_("Change the files; without it only the diff is shown."))] = False,
    json: Json = None,
    html: Html = None,
    quiet: Quiet = False,
    debug: Debug = False,
    seed: Seed = 0,
) -> None:
    """Rewrite a model's source."""
    from npulift.controlflow.command import rewrite as run

    with Progress(quiet or str(json) == "-") as progress, seeded(seed):
        progress(_("looking at {model}").format(model=model))
        report = run(model, write=write)
    finish(report, json=json, html=html, quiet=quiet, fail_on=None)


