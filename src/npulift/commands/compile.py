"""npulift compile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npulift.commands.options import Debug, Html, Json, Model, Progress, Quiet, Seed, TargetName, finish, seeded
from npulift.messages import _


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compile", help=_("Compile a model for a target, in as many sizes as are needed; one bundle, the size is chosen at run time."))(compile)


def compile(
    model: Model,
    target: TargetName = "openvino",
    bucket: Annotated[str, typer.Option("--bucket", "--buckets", metavar="LIST|auto", help=_("Sizes: 224,320,416 or 224x320,416x416, or auto with --shapes."))] = "",
    shapes: Annotated[Path | None, typer.Option("--shapes", metavar="FILE", help=_("CSV of the sizes that occur: a column a dim, and 'count' if wanted."))] = None,
    most: Annotated[int, typer.Option("--max", min=1, max=64, help=_("How many buckets at the most, with auto."))] = 4,
    fit: Annotated[str, typer.Option("--fit", help=_("What to do with sizes between: auto, pad, or letterbox (images)."))] = "auto",
    precision: Annotated[str, typer.Option("--precision", help=_("int8 and kin, as the target has them; without it, the target's default."))] = "",
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help=_("The bundle's folder."))] = None,
    json: Json = None,
    html: Html = None,
    quiet: Quiet = False,
    debug: Debug = False,
    seed: Seed = 0,
) -> None:
    """Compile a model."""
    from npulift.compile import compile as run

    with Progress(quiet or str(json) == "-") as progress, seeded(seed):
        report = run(model, target, buckets=bucket, shapes=shapes, most=most, fit=fit, precision=precision, out=out, say=progress)
    finish(report, json=json, html=html, quiet=quiet)
