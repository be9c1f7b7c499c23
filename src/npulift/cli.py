"""The command line. One file a command in npulift/commands, found by itself; this one only starts and ends them."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys

from npulift import __version__, messages
from npulift.errors import NpuliftError


def _language(argv: list[str]) -> list[str]:
    """Take --lang out of the arguments (it may stand anywhere before --) and set the language, since help is translated too."""
    rest, chosen, i = [], None, 0
    while i < len(argv):
        if argv[i] == "--":
            rest += argv[i:]
            break
        if argv[i] == "--lang" and i + 1 < len(argv):
            chosen, i = argv[i + 1], i + 1
        elif argv[i].startswith("--lang="):
            chosen = argv[i].partition("=")[2]
        else:
            rest.append(argv[i])
        i += 1
    try:
        messages.set_language(chosen or messages.language_from_environment())
    except ValueError as error:
        raise NpuliftError(str(error)) from None
    return rest


def build_app():  # type: ignore[no-untyped-def]
    """The typer application with every command that npulift/commands holds."""
    import typer

    from npulift import commands
    from npulift.messages import _

    app = typer.Typer(
        name="npulift",
        help=_("Makes PyTorch models run right and fast on NPUs. --lang en|zh chooses the language."),
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def version(value: bool) -> None:
        if value:
            typer.echo(f"npulift {__version__}")
            raise typer.Exit

    @app.callback()
    def _root(show: bool = typer.Option(False, "--version", callback=version, is_eager=True, help=_("Print the version and exit."))) -> None:
        pass

    for info in sorted(pkgutil.iter_modules(commands.__path__), key=lambda m: m.name):
        module = importlib.import_module(f"npulift.commands.{info.name}")
        if hasattr(module, "register"):
            module.register(app)
    return app


def main(argv: list[str] | None = None) -> None:
    """Run the command line and leave the process: 0 when all is well, 1 for findings or failure, 2 for a mistake in the call."""
    argv = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in argv
    try:
        argv = _language(argv)
        # torch loads device back ends by itself when it finds them; one that lacks its driver must not break npulift.
        if argv[:1] not in (["run"], ["doctor"]):  # the user's own script and the machine as it is
            os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
        import typer

        app = build_app()
        try:
            sys.exit(app(args=argv, prog_name="npulift", standalone_mode=False) or 0)
        except typer.Abort:
            raise KeyboardInterrupt from None
        except Exception as error:
            show = getattr(error, "show", None)  # a mistake in the call: typer's own exceptions say which, and typer carries its own click
            if show is None or not hasattr(error, "exit_code"):
                raise
            show()
            sys.exit(error.exit_code)
    except NpuliftError as error:
        if debug:
            raise
        print(f"npulift: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        if debug:
            raise
        print("npulift: " + messages._("stopped by the user; what was finished is kept."), file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        if debug:
            raise
        place = f" ({error.filename})" if error.filename else ""
        print("npulift: " + messages._("the system refused: {error}{place}.").format(error=error.strerror or error, place=place), file=sys.stderr)
        sys.exit(1)
    except MemoryError:
        if debug:
            raise
        print("npulift: " + messages._("out of memory on this machine. Try a smaller batch or a smaller model."), file=sys.stderr)
        sys.exit(1)
