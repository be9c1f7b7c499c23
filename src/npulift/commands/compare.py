"""npulift compare."""

from __future__ import annotations

from typing import Annotated

import typer

from npulift.commands.options import Debug, FailOn, Html, Json, Progress, Quiet, Seed, TargetName, finish, seeded
from npulift.findings import Severity
from npulift.messages import _


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare", help=_("Say where the numbers first go wrong, layer by layer."))(compare)


def compare(
    model: Annotated[str, typer.Argument(metavar="MODEL|FILE.csv", help=_("A model, or a table of layers that another tool wrote (layer, cosine, ...)."))],
    target: TargetName = "openvino",
    precision: Annotated[str, typer.Option("--precision", help=_("float16, bfloat16, int8, int4, 16a4w, ...; without it what the target computes in."))] = "",
    threshold: Annotated[float | None, typer.Option("--threshold", help=_("Relative error from which on an operator counts as bad."))] = None,
    no_run: Annotated[bool, typer.Option("--no-run", help=_("Do not run the target itself, imitate the precision only."))] = False,
    fail_on: FailOn = Severity.ERROR,
    json: Json = None,
    html: Html = None,
    quiet: Quiet = False,
    debug: Debug = False,
    seed: Seed = 0,
) -> None:
    """Compare layer by layer."""
    from npulift.precision.compare import compare as run

    with Progress(quiet or str(json) == "-") as progress, seeded(seed):
        progress(_("comparing {model}").format(model=model))
        report = run(model, target, precision=precision, threshold=threshold, run=not no_run)
    finish(report, json=json, html=html, quiet=quiet, fail_on=fail_on)
