"""npulift targets: which hardware npulift knows, and what is missing for it here."""

from __future__ import annotations

import typer

from npulift.commands.options import Html, Json, Quiet, finish
from npulift.messages import _
from npulift.report.document import Report, Table
from npulift.targets.base import target_classes


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("targets", help=_("List the targets, and what is missing for each on this machine."))(targets)


def targets(json: Json = None, html: Html = None, quiet: Quiet = False) -> None:
    """List the targets."""
    rows, data = [], []
    for cls in target_classes().values():
        for name in cls.names():
            target = cls(name)
            missing = target.missing()
            kind = cls.run_kind.value if cls.run_kind else "-"
            rows.append((name, _("ready") if not missing else _("missing"), kind, missing))
            data.append({"target": name, "ready": not missing, "missing": missing or None, "kind": kind})
    table = Table("", (_("target"), _("state"), _("times are"), _("what to do")), tuple(rows), top=200)
    finish(Report("targets", _("Targets on this machine"), {}, data={"targets": data}, sections=(table,)), json=json, html=html, quiet=quiet)
