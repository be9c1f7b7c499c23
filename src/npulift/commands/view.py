"""npulift view."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from npulift.commands.options import Debug
from npulift.errors import NpuliftError
from npulift.messages import _


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("view", help=_("Open a model file (.onnx, .pt2, .xml) in Netron, or say how."))(view)


def view(
    file: Annotated[Path, typer.Argument(metavar="FILE", help=_("A model file."))],
    debug: Debug = False,
) -> None:
    """Look at a model file."""
    if not file.exists():
        raise NpuliftError(_("There is no file {path}.").format(path=file))
    program = shutil.which("netron")
    if program is not None:
        subprocess.Popen([program, str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        typer.echo(_("Netron opens {path}.").format(path=file))
    elif importlib.util.find_spec("netron") is not None:
        subprocess.Popen([sys.executable, "-m", "netron", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        typer.echo(_("Netron opens {path} in the browser.").format(path=file))
    else:
        typer.echo(_("Netron is not installed: pip install netron, then npulift view {path}; or open the file at https://netron.app (it stays in the browser).").format(path=file))
