"""npulift simulate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from npulift.commands.options import Debug, FailOn, Html, Json, Progress, Quiet, Seed, TargetName, finish
from npulift.errors import NpuliftError
from npulift.findings import Severity
from npulift.messages import _


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("simulate", help=_("Run an unmodified torch_npu script (or a model) on a virtual Ascend: launches, fallbacks, memory, predicted time."))(simulate)


def simulate(
    script: Annotated[str | None, typer.Argument(metavar="SCRIPT", help=_("The script, or file.py:factory, or a .pt2 file."))] = None,
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[-- ARGS]", help=_("The script's own arguments, after --."))] = None,
    target: TargetName = "ascend-910b2",
    mode: Annotated[str, typer.Option("--mode", help=_("fake: kernels compute nothing and memory is only reserved. real: values are computed on the CPU."))] = "fake",
    cards: Annotated[int, typer.Option("--cards", help=_("World size to simulate; this one process stands for every rank."))] = 1,
    train: Annotated[bool, typer.Option("--train", help=_("With a model: two training steps with AdamW instead of a forward pass."))] = False,
    assume: Annotated[list[str] | None, typer.Option("--assume", metavar="FILE:LINE=VALUE", help=_("In fake mode, the value read back at this line."))] = None,
    profile: Annotated[Path | None, typer.Option("--profile", metavar="FILE", help=_("Write the events as a profile (Parquet)."))] = None,
    trace: Annotated[Path | None, typer.Option("--trace", metavar="FILE", help=_("Write a Chrome trace (Perfetto, TensorBoard)."))] = None,
    diff: Annotated[tuple[str, str] | None, typer.Option("--diff", metavar="A B", help=_("Compare two runs launch by launch: scripts, models or saved profiles."))] = None,
    fail_on: FailOn = Severity.ERROR,
    json: Json = None,
    html: Html = None,
    quiet: Quiet = False,
    debug: Debug = False,
    seed: Seed = 0,
) -> None:
    """Simulate a script."""
    from npulift.ascend import chrome, memory, profiling, run_report
    from npulift.ascend.simulation import simulate as run
    from npulift.ascend.timing import play

    silent = quiet or str(json) == "-"
    more: dict[str, Any] = {"mode": mode, "cards": cards, "arguments": tuple(arguments or ()), "train": train, "assume": _assumed(assume or []), "seed": seed}
    if diff is not None:
        from npulift.ascend.diff import compare

        with Progress(silent) as progress:
            report = compare(*diff, target=target, say=progress, **more)
        finish(report, json=json, html=html, quiet=quiet, fail_on=None)
        return
    if not script:
        raise NpuliftError(_("Name a script to simulate, or two runs with --diff."))
    with Progress(silent) as progress:
        done = run(script, target, echo=None if silent else sys.stderr, say=progress, **more)
    played = play(list(done.trace.events()), done.chip)
    usage = memory.usage(done.trace, done.result.get("holders") or {})
    if profile is not None:
        from npulift.files import atomic_file

        with atomic_file(profile) as temporary:
            profiling.profile(done, played).write(temporary)
    if trace is not None:
        chrome.write(done, played, usage, trace)
    finish(run_report.report(done, played, usage), json=json, html=html, quiet=quiet, fail_on=fail_on)


def _assumed(texts: list[str]) -> dict[str, Any]:
    import ast

    found = {}
    for text in texts:
        place, equals, value = text.partition("=")
        file, _colon, line = place.rpartition(":")
        try:
            if not equals or not file or not line.isdigit():
                raise ValueError(text)
            found[place] = ast.literal_eval(value)
        except (ValueError, SyntaxError) as error:
            raise NpuliftError(_("--assume takes FILE:LINE=VALUE, such as train.py:12=3, not {text}.").format(text=text)) from error
    return found
