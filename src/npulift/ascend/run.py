"""The process that a simulation runs in: `python -m npulift.ascend.run REQUEST.json`. Writes trace files and result.json into the request's folder.

The request: kind 'script' (path, arguments) or 'model' (a MODEL string, train), mode, cards, seed, assumptions, folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main(request_file: str) -> int:
    """Run the request; returns the exit code of the process: 0 when what was asked for ran to its end."""
    if sys.path and sys.path[0] in ("", os.getcwd()):  # put there by -m; a file of the user's there must not stand in for a module of ours or torch's
        del sys.path[0]
    request = json.loads(Path(request_file).read_text(encoding="utf-8"))
    folder = Path(request["folder"])
    result: dict[str, Any] = {"status": "setup", "notes": []}
    saved = _Result(folder / "result.json", result)
    try:
        before = _set_up(request, result)
    except BaseException as error:
        result["error"] = describe(error)
        saved.write()
        raise
    result["status"] = "running"
    saved.write()
    code = 1
    try:
        with before:
            _work(request, result)
        result["status"], code = "finished", 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        result.update(status="exit", exit_code=code, exit_message=stop.code if isinstance(stop.code, str) else "")
    except BaseException as error:
        _print_trace(error)
        result.update(status="error", error=describe(error))
    with contextlib.suppress(Exception):
        import torch_npu

        torch_npu.npu.synchronize()
    _memory(result)
    from npulift.ascend import assumptions, observing

    result["assumptions"] = assumptions.used()
    observing.stop()
    saved.write()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # torch_npu's own clean-up at exit talks to a device; there is nothing left to save


class _Result:
    def __init__(self, path: Path, result: dict[str, Any]) -> None:
        self._path, self._result = path, result

    def write(self) -> None:
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self._result, default=str), encoding="utf-8")
        temporary.replace(self._path)


def _set_up(request: dict[str, Any], result: dict[str, Any]) -> contextlib.ExitStack:
    import random

    import numpy as np
    import torch

    from npulift.ascend import assumptions, cards, observing

    os.environ.pop("NPULIFT_HOLLOW_TRACE", None)
    if os.environ.get("TASK_QUEUE_ENABLE") == "2":
        os.environ["TASK_QUEUE_ENABLE"] = "1"
        result["notes"].append("task-queue-2")
    observing.start(Path(request["folder"]))
    import torch_npu

    npu: Any = torch_npu.npu
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "1"  # for processes that the script starts
    npu.set_device(0)
    result["versions"] = {"torch": torch.__version__, "torch_npu": torch_npu.__version__, "python": sys.version.split()[0]}
    result["device_name"] = npu.get_device_name(0)
    result["capacity"] = npu.mem_get_info(0)[1]
    if not observing.watch_allocator():
        result["notes"].append("no-allocator-trace")
    random.seed(request["seed"])
    np.random.seed(request["seed"] % 2**32)
    torch.manual_seed(request["seed"])
    _quiet_exit(result, Path(request["folder"]))
    assumptions.install(request.get("assume") or {}, fake=request["mode"] == "fake")
    if request["cards"] > 1 or request.get("distributed"):
        cards.install(request["cards"], result["notes"], fake=request["mode"] == "fake")
    cards.one_process(result["notes"])
    stack = contextlib.ExitStack()
    if request["mode"] == "real":
        for dtype in (np.float16, np.float32, np.float64):  # NumPy works these out once, and warns if denormals are flushed by then
            str(np.finfo(dtype))
        from npulift.ascend import values

        real: Any = values
        stack.enter_context(real.RealValues())
    return stack


def _quiet_exit(result: dict[str, Any], folder: Path) -> None:
    """os._exit ends the process at once: write the trace down before."""
    leave: Callable[[int], Any] = os._exit
    ours = os.getpid()

    def exit_now(code: int) -> None:
        if os.getpid() == ours and result["status"] == "running":
            from npulift.ascend import observing

            result.update(status="exit", exit_code=code, exit_message="os._exit")
            _memory(result)
            observing.stop()
            _Result(folder / "result.json", result).write()
        leave(code)

    os._exit = exit_now  # type: ignore[assignment]


def _work(request: dict[str, Any], result: dict[str, Any]) -> None:
    if request["kind"] == "script":
        path = Path(request["path"]).resolve()
        sys.argv = [request["path"], *request["arguments"]]
        sys.path.insert(0, str(path.parent))
        main_module = types.ModuleType("__main__")  # kept, so that what the script holds at its end can be looked at
        main_module.__file__ = request["path"]
        main_module.__builtins__ = __builtins__  # type: ignore[attr-defined]
        sys.modules["__main__"] = main_module
        exec(compile(path.read_bytes(), str(path), "exec"), main_module.__dict__)
        return
    from npulift.ascend import model_run

    model_run.run(request, result)


def _print_trace(error: BaseException) -> None:
    """The traceback as Python would print it, without the frames of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__ and trace.tb_next is not None:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)


def describe(error: BaseException) -> dict[str, Any]:
    """Type, message and the user's line of an exception."""
    from npulift import graphs

    frames = [(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(error.__traceback__)]
    location = graphs.pick_lines(frames)[0] if frames else None
    kind = type(error).__name__
    return {
        "type": kind,
        "message": str(error)[:8000],
        "file": location.file if location else None,
        "line": location.line if location else None,
        "out_of_memory": kind == "OutOfMemoryError" or "NPU out of memory" in str(error),
        "trace": traceback.format_exc()[-12000:],
    }


def _memory(result: dict[str, Any]) -> None:
    """What the caching allocator says, and what tensors of modules and optimizers are at which address."""
    with contextlib.suppress(Exception):
        import torch_npu

        npu: Any = torch_npu.npu
        devices = []
        for index in range(npu.device_count()):
            reserved = npu.max_memory_reserved(index)
            if reserved:
                stats = npu.memory_stats(index)
                devices.append({
                    "device": index, "peak_allocated": npu.max_memory_allocated(index), "peak_reserved": reserved,
                    "allocated": npu.memory_allocated(index), "reserved": npu.memory_reserved(index),
                    "retries": stats.get("num_alloc_retries", 0), "out_of_memory": stats.get("num_ooms", 0),
                })
        result["memory"] = devices
    with contextlib.suppress(Exception):
        result["holders"] = _holders()


def _holders() -> dict[str, str]:
    """Address -> 'parameter', 'gradient', 'optimizer state' or 'buffer', for what is alive at the end."""
    import gc

    import torch

    found: dict[str, str] = {}

    def add(tensor: Any, what: str) -> None:
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "npu":
            found.setdefault(str(tensor.untyped_storage().data_ptr()), what)

    for thing in gc.get_objects():
        if issubclass(type(thing), torch.nn.Module):
            for parameter in thing._parameters.values():
                if parameter is not None:
                    add(parameter, "parameter")
                    add(parameter.grad, "gradient")
            for buffer in thing._buffers.values():
                add(buffer, "buffer")
        elif issubclass(type(thing), torch.optim.Optimizer):
            for state in thing.state.values():
                for value in state.values() if isinstance(state, dict) else ():
                    add(value, "optimizer state")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
