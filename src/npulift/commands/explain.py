"""npulift explain: the page of a rule or a rewrite."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from npulift.errors import NpuliftError
from npulift.messages import _


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("explain", help=_("Show the page of a rule or a rewrite, by code or name; without one, list them all."))(explain)


def explain(which: Annotated[str, typer.Argument(metavar="CODE", help=_("say NPU203, or host-sync"))] = "") -> None:
    """Show a page."""
    pages = _pages()
    if not which:
        for code, name, _page in pages:
            typer.echo(f"{code}  {name}")
        return
    found = [page for code, name, page in pages if which.lower() in (code.lower(), name.lower())]
    if not found:
        raise NpuliftError(_("There is no rule or rewrite {name}; `npulift explain` lists them.").format(name=which))
    for page in found:
        typer.echo(_(page))


def _pages() -> list[tuple[str, str, str]]:
    from npulift import advice, rewrites, rules

    modules: list[Any] = [*rules.rules(), *rewrites.rewrites(), *advice.rules()]
    pages: list[tuple[str, str, str]] = []
    for module in modules:
        owner = getattr(module, "REWRITE", module)
        code = str(getattr(owner, "code", None) or getattr(owner, "CODE", ""))
        name: str = getattr(owner, "name", None) or getattr(owner, "NAME", module.__name__.rpartition(".")[2].replace("_", "-"))
        pages.append((code, name, inspect.cleandoc(module.__doc__ or "")))
    return sorted(pages)
