"""npulift buckets: which sizes to compile for the shapes that really occur, and what other choices would cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npulift.commands.options import Debug, Html, Json, Model, Progress, Quiet, Seed, TargetName, finish, seeded
from npulift.messages import _


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("buckets", help=_("Choose the sizes to compile for the shapes that occur, at the least expected cost."))(buckets)


def buckets(
    model: Model,
    shapes: Annotated[Path, typer.Option("--shapes", metavar="FILE", help=_("CSV of the sizes that occur: a column a dim, and 'count' if wanted."))],
    most: Annotated[int, typer.Option("--max", min=1, max=64, help=_("How many buckets at the most."))] = 4,
    target: TargetName = "openvino",
    json: Json = None,
    html: Html = None,
    quiet: Quiet = False,
    debug: Debug = False,
    seed: Seed = 0,
) -> None:
    """Choose buckets."""
    from npulift.shapes.advise import buckets as run

    with Progress(quiet or str(json) == "-") as progress, seeded(seed):
        report = run(model, target, shapes, most, progress)
    finish(report, json=json, html=html, quiet=quiet)
