"""Inside the process that runs torch_npu: load the trace and the observer, give modules their names, import torch_npu."""

from __future__ import annotations

import ctypes
import os
import site
import sys
import sysconfig
import weakref
from pathlib import Path
from typing import Any

_libraries: dict[str, ctypes.CDLL] = {}


def libraries() -> Path:
    """The folder with hollow CANN, as the parent process set it."""
    return Path(os.environ["NPULIFT_HOLLOW_LIBRARIES"])


def library(name: str) -> ctypes.CDLL:
    """One of the libraries in that folder, in the global scope."""
    if name not in _libraries:
        _libraries[name] = ctypes.CDLL(str(libraries() / name), mode=ctypes.RTLD_GLOBAL)
    return _libraries[name]


def start(folder: Path, ours: tuple[str, ...] = ()) -> None:
    """Open the trace in `folder` and load the observer; to be called after `import torch` and before `import torch_npu`.

    ours: further files and folders whose frames are nobody's code.
    """
    import torch

    trace = library("libnpulift_trace.so")
    trace.hollow_trace_open(ctypes.c_char_p(os.fsencode(folder)))
    library("libnpulift_observer.so")
    observer = ctypes.PyDLL(str(libraries() / "libnpulift_observer.so"))  # its functions use Python's objects, so they keep the GIL
    if observer.observer_load():
        raise RuntimeError("this Python lacks a function that the observer needs")
    observer.observer_push.restype = observer.observer_pop.restype = ctypes.py_object
    observer.observer_name.argtypes = [ctypes.py_object, ctypes.c_char_p]
    observer.observer_forget.argtypes = [ctypes.c_void_p]
    observer.observer_path.argtypes = [ctypes.c_char, ctypes.c_char_p]
    observer.observer_start.argtypes = [ctypes.py_object]
    package = str(Path(__file__).resolve().parent.parent) + os.sep
    mine = {str(Path(torch.__file__).parent) + os.sep, str(Path(torch.__file__).resolve().parent) + os.sep}
    mine |= {str(Path(p) / "torch_npu") + os.sep for p in sys.path if (Path(p) / "torch_npu").is_dir()}
    packages = {*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    for kind, paths in ((b"o", {package, *ours}), (b"t", mine), (b"l", packages | {str(Path(p).resolve()) for p in packages})):
        for path in sorted(paths):
            observer.observer_path(kind, os.fsencode(path))
    _watch_modules(observer)
    observer.observer_start(torch.nn.Module.__call__.__code__)


def watch_allocator() -> bool:
    """Record what the caching allocator hands out; to be called after torch.npu is initialised. False when this torch_npu cannot tell."""
    try:
        return not ctypes.CDLL(str(libraries() / "libnpulift_allocations.so")).allocations_start()
    except OSError:
        return False


def stop() -> None:
    """Close the trace; what follows is not recorded."""
    library("libnpulift_trace.so").hollow_trace_close()


class paused:
    """A context in which this thread records nothing."""

    def __enter__(self) -> None:
        library("libnpulift_trace.so").hollow_pause(1)

    def __exit__(self, *exc: object) -> None:
        library("libnpulift_trace.so").hollow_pause(0)


def _watch_modules(observer: ctypes.PyDLL) -> None:
    """Stand in for Module.__call__: the observer is told which module is entered and left."""
    import torch

    push, pop = observer.observer_push(), observer.observer_pop()
    named: dict[int, Any] = {}

    def forget(key: int) -> None:
        named.pop(key, None)
        observer.observer_forget(key)

    def name(root: torch.nn.Module) -> None:
        for path, module in root.named_modules():
            if id(module) not in named:
                observer.observer_name(module, path.encode())
                named[id(module)] = weakref.finalize(module, forget, id(module))
                named[id(module)].atexit = False

    def __call__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if push(self):
            name(self)
        try:
            compiled = self._compiled_call_impl
            return compiled(*args, **kwargs) if compiled is not None else self._call_impl(*args, **kwargs)
        finally:
            pop()

    torch.nn.Module.__call__ = __call__  # type: ignore[method-assign]
