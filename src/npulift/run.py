"""`npulift run script.py [ARGUMENTS]`: the script as Python would run it, with an explanation under the traceback when it fails."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from pathlib import Path

from npulift.errors import NpuliftError
from npulift.messages import _


def run(script: str, arguments: list[str]) -> int:
    """Run a script in this process as __main__. Returns its exit code; raises NpuliftError when there is no such script.

    The traceback is the script's own (frames of npulift and runpy are left out), and the explanation follows it on standard error.
    """
    from npulift.doctor.exceptions import explain, started

    path = Path(script)
    if not path.is_file():
        raise NpuliftError(_("There is no script {path}.").format(path=script))
    begun = started()
    sys.argv = [script, *arguments]
    sys.path[0:1] = [str(path.resolve().parent)]
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as leave:
        if leave.code is None or isinstance(leave.code, int):
            return leave.code or 0
        print(leave.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        error.__traceback__ = _own_frames(error, path)
        sys.stdout.flush()
        traceback.print_exception(type(error), error, error.__traceback__)
        said = explain(error, since=begun)
        if said:
            print("\n" + said, file=sys.stderr)
        return 1
    return 0


def _own_frames(error: BaseException, path: Path):  # type: ignore[no-untyped-def]
    trace = error.__traceback__
    names = {str(path), str(path.resolve())}
    current = trace
    while current is not None:
        if current.tb_frame.f_code.co_filename in names:
            return current
        current = current.tb_next
    return trace
