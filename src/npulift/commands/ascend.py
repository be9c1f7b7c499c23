"""npulift ascend: what the virtual Ascend needs on this machine."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from npulift.commands.options import Debug, Html, Json, Progress, Quiet, finish
from npulift.messages import _

group = typer.Typer(help=_("The virtual Ascend: install what it needs, print its environment."), no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    app.add_typer(group, name="ascend")
    group.command("env", help=_("Print the environment in which torch_npu runs without CANN: eval \"$(npulift ascend env)\"."))(env)
    group.command("install", help=_("Fetch torch_npu into npulift's cache and build hollow CANN for it."))(install)
    group.command("chips", help=_("List the chips, with their figures and where those come from."))(list_chips)


def env(
    target: Annotated[str, typer.Option("--target", "-t", help=_("Which chip to be."))] = "ascend-910b2",
    mode: Annotated[str, typer.Option("--mode", help=_("fake: device memory is only reserved. real: it holds what is copied there."))] = "real",
    cards: Annotated[int, typer.Option("--cards", help=_("How many devices there are."))] = 8,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Print export lines for a POSIX shell."""
    from npulift.ascend import environment
    from npulift.ascend.chips import chip
    from npulift.errors import NpuliftError

    if mode not in ("fake", "real"):
        raise NpuliftError(_("{mode} is not a mode; choose fake or real.").format(mode=mode))
    wanted = chip(target)
    with Progress(quiet) as progress:
        ground = environment.prepare(progress)
    if ground.cann is not None:
        typer.echo(_("CANN is installed in {path}; the shell is left as it is, but for the path to torch_npu.").format(path=ground.cann), err=True)
    for name, value in environment.variables(ground, wanted, mode, 1, devices=cards).items():
        typer.echo(f"export {name}={shlex.quote(value)}")


def install(
    wheel: Annotated[Path | None, typer.Option("--wheel", metavar="FILE", help=_("Unpack this wheel of torch_npu instead of fetching one."))] = None,
    json: Json = None,
    html: Html = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Install torch_npu and build hollow CANN."""
    from npulift.ascend import environment, hollow
    from npulift.ascend import wheel as wheels
    from npulift.report.document import Facts, Report

    with Progress(quiet) as progress:
        folder = wheels.install(progress, wheel) if wheel is not None else wheels.ensure(progress)
        libraries = hollow.build(folder, progress)
    cann = environment.real_cann()
    data = {"torch_npu": wheels.version_of(folder), "folder": str(folder), "hollow_cann": str(libraries), "cann": str(cann) if cann else None}
    rows = (("torch_npu", data["torch_npu"] or "?"), (_("folder"), str(folder)), (_("hollow CANN"), str(libraries)), ("CANN", str(cann) if cann else _("not installed")))
    finish(Report("ascend", _("The virtual Ascend is ready"), {}, data=data, sections=(Facts("", rows),)), json=json, html=html, quiet=quiet)


def list_chips(json: Json = None, html: Html = None, quiet: Quiet = False) -> None:
    """List the chips."""
    from npulift.ascend.chips import chips
    from npulift.report.document import Report, Table

    rows: list[Any] = []
    data = []
    for c in chips().values():
        rows.append((c.name, c.soc, f"{c.usable_bytes / 2**30:.2f}", f"{c.bandwidth / 1e9:.0f}", f"{c.peak_fp16 / 1e12:.0f}", c.cube_cores, "bf16" if c.bfloat16 else "-"))
        data.append({"name": c.name, "soc": c.soc, "hbm_bytes": c.hbm_bytes, "reserved_bytes": c.reserved_bytes, "bandwidth": c.bandwidth, "peak_fp16": c.peak_fp16,
                     "cube_cores": c.cube_cores, "vector_cores": c.vector_cores, "clock": c.clock, "bfloat16": c.bfloat16, "sources": list(c.sources)})
    table = Table("", (_("target"), "SoC", "GiB", "GB/s", "TFLOP/s fp16", _("cube cores"), _("bfloat16")), tuple(rows), note=_("Published figures; --json has their sources."))
    finish(Report("ascend", _("Ascend chips"), {}, data={"chips": data}, sections=(table,)), json=json, html=html, quiet=quiet)
