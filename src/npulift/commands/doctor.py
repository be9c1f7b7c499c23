"""npulift doctor."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from npulift.commands.options import Debug, FailOn, Html, Json, Progress, Quiet, finish
from npulift.errors import NpuliftError
from npulift.findings import Severity
from npulift.messages import _


class Symptom(str, enum.Enum):
    slow = "slow"
    wrong = "wrong"
    oom = "oom"
    nan = "nan"
    scaling = "scaling"
    init = "init"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor", help=_("Is the installation right (without arguments); what does this error mean (with log files)."))(doctor)


def doctor(
    logs: Annotated[list[str] | None, typer.Argument(metavar="[LOG...]", help=_("Log files or folders, - for standard input; with --symptom the model or script."))] = None,
    symptom: Annotated[Symptom | None, typer.Option("--symptom", help=_("Walk through the usual causes of a symptom, running the checks on MODEL or SCRIPT."))] = None,
    target: Annotated[str, typer.Option("--target", "-t", help=_("For --symptom: which hardware, see `npulift targets`."))] = "openvino",
    bundle: Annotated[Path | None, typer.Option("--bundle", metavar="ZIP", help=_("Write environment, logs and report for support, with secrets and names taken out."))] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help=_("Write the bundle without asking."))] = False,
    no_smoke: Annotated[bool, typer.Option("--no-smoke", help=_("Leave out the smoke operations on the devices."))] = False,
    fail_on: FailOn = Severity.ERROR,
    json: Json = None,
    html: Html = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Look at this machine, or at logs, or into a symptom."""
    from npulift.doctor import reporting

    logs = logs or []
    with Progress(quiet) as progress:
        if symptom is not None:
            from npulift.doctor.symptoms import walk

            if len(logs) != 1:
                raise NpuliftError(_("--symptom wants one MODEL (file.py:factory) or SCRIPT."))
            report = walk(symptom.value, logs[0], target, progress)
        elif logs:
            from npulift.doctor.diagnose import diagnose

            seen = [0]

            def read(name: str, size: int) -> None:
                if size - seen[0] > 64 * 1024 * 1024:
                    seen[0] = size
                    progress(_("reading {name}: {size} MB").format(name=name, size=size // 1_000_000))

            report = reporting.log_report(diagnose(logs, read))
        else:
            from npulift.doctor.environment import environment_report

            report = environment_report(smoke=not no_smoke, progress=progress)
    if bundle is not None:
        from npulift.doctor.bundling import collect, write

        content = collect(report, [] if symptom is not None else logs)
        typer.echo(_("The bundle will hold:"), err=True)
        for name, size, changed in content.listing():
            typer.echo(f"  {name}  {size} B" + (_("  ({n} places taken out)").format(n=changed) if changed else ""), err=True)
        for kind, count in content.removed.items():
            typer.echo(_("  taken out: {kind} ({n})").format(kind=kind, n=count), err=True)
        if not yes and not quiet and typer.get_text_stream("stdin").isatty() and not typer.confirm(_("Write {path}?").format(path=bundle), err=True):
            raise typer.Exit(1)
        write(content, bundle)
        typer.echo(_("written: {path}").format(path=bundle), err=True)
    finish(report, json=json, html=html, quiet=quiet, fail_on=fail_on)
