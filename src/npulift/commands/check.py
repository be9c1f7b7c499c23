"""npulift check."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from npulift.commands.options import Debug, FailOn, Html, Json, Model, Progress, Quiet, Seed, TargetName, finish, seeded
from npulift.findings import Severity
from npulift.messages import _


class Format(str, enum.Enum):
    text = "text"
    json = "json"
    sarif = "sarif"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check", help=_("Say what will fall back, recompile, transpose or lose precision, with your own source lines."))(check)


def check(
    model: Model,
    target: TargetName = "openvino",
    format: Annotated[Format, typer.Option("--format", help=_("What goes to standard output."))] = Format.text,
    torch_npu: Annotated[str | None, typer.Option("--torch-npu", metavar="VERSION", help=_("Answer for this version of torch_npu."))] = None,
    fail_on: FailOn = Severity.ERROR,
    json: Json = None,
    html: Html = None,
    quiet: Quiet = False,
    debug: Debug = False,
    seed: Seed = 0,
) -> None:
    """Check a model for a target."""
    from npulift.check import check as run
    from npulift.report import render

    options = {"torch_npu": torch_npu} if torch_npu else {}
    with Progress(quiet or format is not Format.text) as progress, seeded(seed):
        progress(_("looking at {model}").format(model=model))
        report = run(model, target, **options)
    if format is Format.json:
        render.json_file(report, Path("-"))
    elif format is Format.sarif:
        render.sarif_file(report, Path("-"))
    finish(report, json=json, html=html, quiet=quiet or format is not Format.text, fail_on=fail_on)
