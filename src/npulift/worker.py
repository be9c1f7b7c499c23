"""Worker: a process of our own in which vendor code runs, with limits on time and memory.

A vendor compiler may abort, hang or eat the machine; then the worker dies and the caller gets an exception that says why.
Calls go over a pipe to a child that npulift itself started; nothing from outside is ever unpickled.
This module imports nothing heavy, so that it also runs in an environment that lacks npulift's own dependencies.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


class WorkerError(Exception):
    """The call failed. log: the last lines that the worker printed."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class WorkerDied(WorkerError):
    """The process ended by itself: aborted, was killed, or exited."""


class WorkerTimeout(WorkerError):
    """The call took longer than allowed; the process was killed."""


class WorkerOutOfMemory(WorkerError):
    """The process used more memory than allowed; it was killed."""


class RemoteError(WorkerError):
    """The function raised in the worker. kind: name of the exception's class. trace: its traceback, as text."""

    def __init__(self, kind: str, message: str, trace: str, log: str = "") -> None:
        super().__init__(message, log)
        self.kind, self.trace = kind, trace


class Worker:
    """A child process that runs functions by name. Use as a context manager, or call close().

    time_limit: seconds that a call may take, unless the call says otherwise.
    memory_limit: bytes of resident memory, or None; by default three quarters of what the machine has available.
    python: the interpreter, when it is that of another environment.   environment: variables set on top of ours.
    """

    def __init__(
        self,
        *,
        time_limit: float = 600.0,
        memory_limit: int | None = -1,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._time_limit = time_limit
        self._memory_limit = _three_quarters() if memory_limit == -1 else memory_limit
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - lives as long as the process
        ours, theirs = _pipe()
        source = str(Path(__file__).parent.parent)
        path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
        from npulift.messages import current_language

        env = {**os.environ, "NPULIFT_WORKER_LANGUAGE": current_language(), "PYTHONPATH": path, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OPENVINO_TELEMETRY": "0", **(environment or {})}
        self._process = subprocess.Popen(
            [python, "-m", "npulift.worker", str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, env=env, start_new_session=True,
        )
        theirs.close()
        self._pipe = ours
        self._lock = threading.Lock()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """True while calls can be made."""
        return self._process.poll() is None

    def call(self, function: str, *args: Any, time_limit: float | None = None, **kwargs: Any) -> Any:
        """Run 'module:function' in the worker and return what it returns (must pickle).

        Raises RemoteError when it raised; WorkerTimeout, WorkerOutOfMemory or WorkerDied when the process is gone afterwards.
        """
        with self._lock:
            try:
                self._pipe.send((function, args, kwargs))
            except (BrokenPipeError, OSError, ValueError) as error:
                raise self._dead() from error
            deadline = time.monotonic() + (time_limit or self._time_limit)
            try:
                while not self._pipe.poll(min(0.25, max(0.0, deadline - time.monotonic()))):
                    if self._process.poll() is not None and not self._pipe.poll(0):
                        raise self._dead()
                    if time.monotonic() > deadline:
                        self._kill()
                        raise WorkerTimeout(f"no answer within {time_limit or self._time_limit:.0f} s", self.log())
                    used = _resident(self._process.pid)
                    if self._memory_limit is not None and used > self._memory_limit:
                        self._kill()
                        raise WorkerOutOfMemory(f"used {used / 2**30:.1f} GiB of the {self._memory_limit / 2**30:.1f} GiB allowed", self.log())
                answer = self._pipe.recv()
            except (EOFError, ConnectionResetError) as error:
                raise self._dead() from error
            except BaseException as error:
                if not isinstance(error, WorkerError):  # Ctrl-C: the answer that is still under way must not be taken for the next one
                    self._kill()
                raise
        if answer[0] == "ok":
            return answer[1]
        raise RemoteError(answer[1], answer[2], answer[3], self.log())

    def log(self, limit: int = 8000) -> str:
        """The end of what the worker printed to standard output and error."""
        with contextlib.suppress(OSError, ValueError):
            size = os.fstat(self._log.fileno()).st_size
            return os.pread(self._log.fileno(), limit, max(0, size - limit)).decode(errors="replace")
        return ""

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._pipe.close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._kill()
        with contextlib.suppress(OSError):
            self._log.close()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _dead(self) -> WorkerDied:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        code = self._process.poll()
        if code is not None and code < 0:
            return WorkerDied(f"ended by {signal.Signals(-code).name}", self.log())
        return WorkerDied(f"exited with {code}", self.log())


def _pipe() -> tuple[Connection, Connection]:
    import socket

    a, b = socket.socketpair()
    return Connection(a.detach()), Connection(b.detach())


def _resident(pid: int) -> int:
    """Resident bytes of a process, 0 when it cannot be told."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def _three_quarters() -> int | None:
    try:
        with open("/proc/meminfo") as file:
            available = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
        return available * 3 // 4
    except (OSError, StopIteration):
        return None


def _serve(pipe: Connection) -> None:
    while True:
        try:
            function, args, kwargs = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            module, _, name = function.partition(":")
            target: Any = importlib.import_module(module)
            for part in name.split("."):
                target = getattr(target, part)
            answer: tuple[Any, ...] = ("ok", target(*args, **kwargs))
        except BaseException as error:
            answer = ("error", type(error).__name__, str(error), traceback.format_exc())
        try:
            pipe.send(answer)
        except OSError:
            return
        except Exception as error:  # the result cannot be pickled
            pipe.send(("error", type(error).__name__, str(error), traceback.format_exc()))


def _main() -> None:
    if sys.platform == "linux":  # die with the parent, even when it is killed with SIGKILL while we are inside a compiler
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != int(sys.argv[2]):
            return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _serve(Connection(int(sys.argv[1])))


if __name__ == "__main__":
    _main()
