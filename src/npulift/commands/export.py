"""npulift export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npulift.commands.options import Debug, Html, Json, Model, Progress, Quiet, Seed, finish, seeded
from npulift.messages import _


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("export", help=_("Write a clean ONNX file: named inputs, dynamic axes with ranges, checked against eager."))(export)


def export(
    model: Model,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.onnx", help=_("Where to write it."))],
    form: Annotated[str, typer.Option("--form", help=_("decomposed (opset 20, attention as MatMul and Softmax) or fused (opset 23, attention as one node)."))] = "decomposed",
    opset: Annotated[int | None, typer.Option("--opset", help=_("Another opset than the form's own."))] = None,
    json: Json = None,
    html: Html = None,
    quiet: Quiet = False,
    debug: Debug = False,
    seed: Seed = 0,
) -> None:
    """Export to ONNX."""
    from npulift.export import export as run

    with Progress(quiet or str(json) == "-") as progress, seeded(seed):
        progress(_("exporting {model}").format(model=model))
        report = run(model, out, form=form, opset=opset)
    finish(report, json=json, html=html, quiet=quiet)
