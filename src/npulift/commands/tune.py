"""npulift tune."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from npulift.commands.options import Debug, Html, Json, Model, Progress, Quiet, Seed, TargetName, finish, seeded
from npulift.errors import NpuliftError
from npulift.messages import _


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tune", help=_("Find the changes that make a model faster on a target, verify each, keep what wins; write a bundle and a report."))(tune)


def seconds(text: str) -> float:
    """Seconds of '90', '90s', '5m' or '1h'. Raises NpuliftError for anything else."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    if not found:
        raise NpuliftError(_("{text} is not a time; write 90s, 5m or 1h.").format(text=text))
    return float(found.group(1)) * {"": 1, "s": 1, "m": 60, "h": 3600}[found.group(2)]


def tune(
    model: Model,
    target: TargetName = "openvino",
    budget: Annotated[str, typer.Option("--budget", help=_("Time for trials: 90s, 5m, 1h. Baselines and the final comparison come on top."))] = "5m",
    goal: Annotated[str, typer.Option("--goal", help=_("What must get better: latency, throughput or size."))] = "latency",
    max_error: Annotated[float | None, typer.Option("--max-error", help=_("Relative error allowed to changes of precision (0.01 is 1 % of the largest value)."))] = None,
    metric_drop: Annotated[float, typer.Option("--metric-drop", help=_("How much the model's metric may fall."))] = 0.0,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help=_("The bundle's folder."))] = None,
    json: Json = None,
    html: Html = None,
    quiet: Quiet = False,
    debug: Debug = False,
    seed: Seed = 0,
) -> None:
    """Tune a model."""
    limit = seconds(budget)
    from npulift.tune import tune as run

    with Progress(quiet or str(json) == "-") as progress, seeded(seed):
        report = run(model, target, budget=limit, goal=goal, max_error=max_error, metric_drop=metric_drop, out=out, seed=seed, say=progress)
    finish(report, json=json, html=html, quiet=quiet, fail_on=None)
