"""Run a script or a model on the virtual Ascend, in a process of its own, and read what it left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from npulift.ascend import environment
from npulift.ascend.chips import Chip, chip
from npulift.ascend.records import Trace
from npulift.errors import NpuliftError
from npulift.messages import _


@dataclass(frozen=True)
class Simulation:
    """A run that has ended.

    status: 'finished', 'exit' (the script called exit), 'error' (it raised), 'killed' (the process ended by itself) or 'setup' (torch_npu did not start).
    result: what the process wrote about itself (memory, error, versions, assumptions).   log: the last lines that it printed.
    seconds: from start to end, imports included.   host_bytes: its largest resident memory.
    """

    what: str
    chip: Chip
    mode: str
    cards: int
    status: str
    exit_code: int
    result: dict[str, Any]
    trace: Trace
    log: tuple[str, ...]
    seconds: float
    host_bytes: int
    cann: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def error(self) -> dict[str, Any]:
        """Type, message, file and line of the exception that ended it, {} when none did."""
        return self.result.get("error") or {}


def simulate(
    what: str,
    target: str = "ascend-910b2",
    *,
    mode: str = "fake",
    cards: int = 1,
    arguments: tuple[str, ...] = (),
    train: bool = False,
    assume: dict[str, Any] | None = None,
    seed: int = 0,
    echo: IO[str] | None = None,
    say: Callable[[str], None] = lambda _text: None,
    time_limit: float | None = None,
    **more: Any,
) -> Simulation:
    """Run `what` (a script's path, or a MODEL string) on the virtual chip of that target.

    echo: where the script's output goes, None for nowhere.   time_limit: seconds, after which the process is killed.   more: keys of the request.
    Raises NpuliftError when it cannot be started; what the script itself does wrong is told in the Simulation.
    """
    wanted = chip(target)
    if mode not in ("fake", "real"):
        raise NpuliftError(_("{mode} is not a mode; choose fake or real.").format(mode=mode))
    if mode == "real" and not (Path(__file__).parent / "values" / "__init__.py").exists():
        raise NpuliftError(_("The values of kernels are not part of this installation; use --mode fake."))
    if not 1 <= cards <= 64:
        raise NpuliftError(_("--cards takes a number from 1 to 64, not {n}.").format(n=cards))
    request = {"mode": mode, "cards": cards, "seed": seed, "assume": assume or {}, "train": train, **(_kind(what, arguments) if "kind" not in more else {}), **more}
    ground = environment.prepare(say)
    variables = {**os.environ, **environment.variables(ground, wanted, mode, cards), "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    source = str(Path(__file__).resolve().parent.parent.parent)
    variables["PYTHONPATH"] = os.pathsep.join([variables["PYTHONPATH"], source])
    with tempfile.TemporaryDirectory(prefix="npulift-") as name:
        folder = Path(name)
        request["folder"] = name
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        start = time.monotonic()
        say(_("running {what} on a virtual {chip}").format(what=what, chip=wanted.soc))
        code, log, host = _run([sys.executable, "-m", "npulift.ascend.run", str(folder / "request.json")], variables, echo, time_limit)
        seconds = time.monotonic() - start
        result: dict[str, Any] = {"status": "setup"}
        with contextlib.suppress(OSError, ValueError):
            result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        status = result.get("status", "setup")
        if status == "running":
            status = "killed"
        if status == "setup":
            error = (result.get("error") or {}).get("message") or (log[-1] if log else "")
            raise NpuliftError(_("torch_npu did not start on hollow CANN: {error}").format(error=error), exit_code=1)
        trace = Trace(folder)
    return Simulation(what, wanted, mode, cards, status, code, result, trace, tuple(log), seconds, host, str(ground.cann or ""))


def _kind(what: str, arguments: tuple[str, ...]) -> dict[str, Any]:
    path = Path(what)
    if path.suffix == ".py" and path.is_file():
        return {"kind": "script", "path": what, "arguments": list(arguments)}
    if path.suffix == ".pt2" or ":" in what:
        return {"kind": "model", "model": what}
    if path.is_dir() or not path.exists():
        raise NpuliftError(_("There is no script {path}.").format(path=what))
    if path.suffix in (".sh", ".ipynb"):
        raise NpuliftError(_("{path} is not a Python script; name the .py file that it starts.").format(path=what))
    return {"kind": "script", "path": what, "arguments": list(arguments)}


def _run(command: list[str], variables: dict[str, str], echo: IO[str] | None, time_limit: float | None) -> tuple[int, list[str], int]:
    """(exit code, last lines, largest resident bytes)."""
    last: deque[str] = deque(maxlen=400)
    process = subprocess.Popen(
        command, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, text=True,
        errors="replace",
    )
    assert process.stdout is not None

    def copy(stream: IO[str]) -> None:
        for line in stream:
            if _NOISE in line:
                continue
            last.append(line.rstrip("\n")[:4000])
            if echo is not None:
                with contextlib.suppress(OSError, ValueError):
                    echo.write(line)
                    echo.flush()

    reader = threading.Thread(target=copy, args=(process.stdout,), daemon=True)
    reader.start()
    deadline = time.monotonic() + time_limit if time_limit else None
    largest, ended = 0, False
    try:
        while not ended:
            # Not wait4's ru_maxrss: that counts the caller's own memory, from the moment between fork and exec.
            largest = max(largest, _high_water(process.pid))
            pid, status = os.waitpid(process.pid, os.WNOHANG)
            if pid:
                ended = True
                process.returncode = os.waitstatus_to_exitcode(status)
            elif deadline is not None and time.monotonic() > deadline:
                last.append(_("stopped after {n:.0f} s").format(n=time_limit or 0))
                _kill(process.pid)
                deadline = None
            else:
                time.sleep(0.01)
    finally:
        _kill(process.pid)  # what the script may have left running, too
    reader.join(timeout=5)
    return process.returncode, list(last), largest


def _high_water(pid: int) -> int:
    """Largest resident bytes so far (VmHWM); 0 when it cannot be read any more."""
    try:
        with open(f"/proc/{pid}/status") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM")), 0)
    except OSError:
        return 0


_NOISE = "The current CANN and Soc versions require processing for 32 padding size"


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
