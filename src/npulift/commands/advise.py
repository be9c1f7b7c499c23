"""npulift advise."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from npulift.commands.options import Debug, FailOn, Html, Json, Progress, Quiet, finish
from npulift.findings import Severity
from npulift.messages import _


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("advise", help=_(
        "Read profiler output and rank the causes of lost time. Reads Ascend PyTorch Profiler and msprof folders (CSV, JSON, .db), torch.profiler and Kineto traces (also .gz), "
        "ONNX Runtime profiles, OpenVINO counters, QNN and Vela tables, npulift's own Parquet, and plain tables of step times or of waits by rank."))(advise)


def advise(
    inputs: Annotated[list[str], typer.Argument(metavar="FILE|DIR...", help=_("Files or folders; '-' reads one file from standard input."))],
    against: Annotated[Path | None, typer.Option("--against", metavar="FILE|DIR", help=_("Compare with this profile."))] = None,
    active: Annotated[int | None, typer.Option("--active", min=1, help=_("How many steps the profiler's schedule recorded, where no profiler_info.json says it."))] = None,
    chip: Annotated[str | None, typer.Option("--chip", help=_("Which chip it ran on, say Ascend310P3, where no file says it."))] = None,
    parquet: Annotated[Path | None, typer.Option("--parquet", metavar="FILE", help=_("Also write the events as Parquet, which reads faster next time."))] = None,
    trace: Annotated[Path | None, typer.Option("--trace", metavar="FILE", help=_("Also write a trace for Perfetto and TensorBoard (Chrome trace format; .gz packs it)."))] = None,
    fail_on: FailOn = Severity.ERROR,
    json: Json = None,
    html: Html = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Advice over profiles."""
    from npulift.advise import advise as run

    with tempfile.TemporaryDirectory() as folder:
        paths = [_standard_input(Path(folder)) if p == "-" else Path(p) for p in inputs]
        with Progress(quiet) as progress:
            report = run(list(paths), against, active=active, chip=chip, progress=progress)
            if parquet is not None or trace is not None:
                _also(list(paths), parquet, trace)
    finish(report, json=json, html=html, quiet=quiet, fail_on=fail_on)


def _standard_input(folder: Path) -> Path:
    path = folder / "standard-input"
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return path


def _also(paths: list[Path], parquet: Path | None, trace: Path | None) -> None:
    from npulift.files import atomic_file
    from npulift.profilers.reading import read

    profile = read(paths).profile
    if parquet is not None:
        with atomic_file(parquet) as temporary:
            profile.write(temporary)
    if trace is not None:
        from npulift.profilers.exporting import chrome_trace

        chrome_trace(profile, trace)
