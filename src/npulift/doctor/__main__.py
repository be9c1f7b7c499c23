"""`python -m npulift.doctor [FILE...]`, or this file itself: the doctor with Python alone (no typer, no rich, no torch)."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

if __package__ in (None, ""):  # run as a file: put src/ on the path in place of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent.parent)


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 when all is well, 1 when something is wrong, 2 for a mistake in the call."""
    from npulift import messages
    from npulift.errors import NpuliftError

    parser = argparse.ArgumentParser(prog="python -m npulift.doctor", description="Is the installation right; what does this error mean.")
    parser.add_argument("files", nargs="*", metavar="LOG", help="log files, folders, or - for standard input; none: look at this machine")
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON ('-' for standard output)")
    parser.add_argument("--quiet", "-q", action="store_true", help="print nothing but errors")
    parser.add_argument("--no-smoke", action="store_true", help="leave out the smoke operations on the devices")
    parser.add_argument("--lang", choices=messages.LANGUAGES, default=messages.language_from_environment())
    options = parser.parse_args(argv)
    messages.set_language(options.lang)
    from npulift.doctor import reporting

    try:
        if options.files:
            from npulift.doctor.diagnose import diagnose

            report = reporting.log_report(diagnose(options.files))
        else:
            from npulift.doctor.environment import environment_report

            report = environment_report(smoke=not options.no_smoke)
        text = json.dumps(reporting.as_json(report), indent=2, ensure_ascii=False)
        if options.json == "-":
            print(text)
        elif options.json:
            from npulift.files import write_text

            write_text(options.json, text + "\n")
        if not options.quiet and options.json != "-":
            print(reporting.plain(report))
    except NpuliftError as error:
        print(f"npulift: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        return 0
    return 1 if reporting.failed(report) else 0


if __name__ == "__main__":
    sys.exit(main())
