"""Sessions of ONNX Runtime with the Qualcomm provider, opened so that nothing can fall to the CPU unseen.

The provider falls silently in five ways: a bad SoC number, a missing library, dynamic dims, a list of provider names instead of a device,
and a run that fails and is retried on the CPU. Each is caught here: the device is added as such, the placement of every node is read
back, and the retry is switched off.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npulift.errors import NpuliftError
from npulift.messages import _
from npulift.targets.qnn.vendor_errors import VendorError, read_error

PROVIDER = "QNNExecutionProvider"
STANDS_FOR_NONE = 30  # number 0 compiles as 30 does, but only until the process has used another number, which it then keeps
_registered = False


@dataclass(frozen=True)
class Opened:
    """A session, and what the compiler said. nodes: (name, operator, on the NPU) of every node after ONNX Runtime's own optimisation.

    parts: number of NPU programs.   refused: the compiler's reason by node name.   fused: QNN operators after fusion, None when it does
    not say (a context binary that was opened).   log: what was printed meanwhile.
    """

    session: Any
    nodes: tuple[tuple[str, str, bool], ...]
    parts: int
    refused: dict[str, str] = field(default_factory=dict)
    fused: int | None = None
    log: str = ""


def open_session(model: Path, soc: int, *, options: dict[str, str] | None = None, context: Path | None = None, trace: Path | None = None) -> Opened:
    """Compile an ONNX file for the SoC (or open a context binary), and say where every node went.

    options: further options of the provider.   context: where the model with the context binary is written; must not exist.
    trace: a folder for the compiler's own records (its operator trace, and *_schematic.bin by NPU program).
    Raises VendorError when the compiler stops, NpuliftError when the provider cannot be set up. Does not judge how many nodes went to the CPU.
    """
    import onnxruntime as ort
    import onnxruntime_qnn as qnn

    model, context, trace = model.resolve(), context and context.resolve(), trace and trace.resolve()
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    provider = {"backend_path": qnn.get_qnn_htp_path(), "soc_model": str(soc or STANDS_FOR_NONE), "offload_graph_io_quantization": "0", **(options or {})}
    if context is not None:
        settings.add_session_config_entry("ep.context_enable", "1")
        settings.add_session_config_entry("ep.context_file_path", str(context))
    if trace is not None:
        provider |= {
            "profiling_level": "optrace", "profiling_file_path": str(trace / "events.csv"),
            "enable_framework_op_trace": "1", "framework_op_trace_dir": str(trace),
        }
    log = ""
    try:
        with _logged() as read_log, _inside(trace):
            devices = [d for d in _devices(ort, qnn) if d.ep_name == PROVIDER]
            if not devices:
                raise NpuliftError(_("qnn: the provider offers no device on this machine."), exit_code=1)
            settings.add_provider_for_devices(devices[:1], provider)
            try:
                session = ort.InferenceSession(str(model), settings)
            finally:
                log = read_log()
    except NpuliftError:
        raise
    except Exception as error:  # ONNX Runtime raises classes of its own that share no base but Exception
        raise read_error(str(error), log) from error
    session.disable_fallback()
    return _described(session, trace, log)


def _described(session: Any, trace: Path | None, log: str) -> Opened:
    nodes: list[tuple[str, str, bool]] = []
    parts = 0
    for part in session.get_provider_graph_assignment_info():
        here = part.ep_name == PROVIDER
        parts += here
        nodes += [(n.name, n.op_type, here) for n in part.get_nodes()]
    refused, fused = {}, None
    file = trace / "qnn_op_trace.json" if trace is not None else None
    if file is not None and file.is_file():
        record = json.loads(file.read_text(encoding="utf-8", errors="replace"))
        refused = {str(n.get("node_name")): str(n.get("reason", "")) for n in record.get("unsupported_nodes", ())}
        fused = record.get("summary", {}).get("total_qnn_ops")
    return Opened(session, tuple(nodes), parts, refused, fused, log)


def check_set_up(opened: Opened) -> None:
    """Raise VendorError when nothing went to the NPU and the compiler gives no reason by node: then it was never set up."""
    if any(here for _name, _operator, here in opened.nodes) or opened.refused or not opened.nodes:
        return
    lines = [line for line in opened.log.splitlines() if "rror" in line]
    found = read_error("", "\n".join(lines) or opened.log)
    text = lines[-1] if lines else _("nothing was placed on the NPU, and the provider gives no reason")
    raise VendorError(found.code, text, opened.log)


def _devices(ort: Any, qnn: Any) -> list[Any]:
    """Every provider device of this machine, the real NPU of a Snapdragon before the simulator."""
    global _registered
    if not _registered:
        library = qnn.get_library_path()
        if not os.path.exists(library):
            raise NpuliftError(_("qnn: the provider's library {library} is not there; install onnxruntime-qnn again.").format(library=library), exit_code=1)
        ort.register_execution_provider_library(qnn.get_ep_name(), library)
        _registered = True
    return sorted(ort.get_ep_devices(), key=lambda d: "NPU" not in str(d.device.type))


def on_device() -> bool:
    """True when this machine has a Qualcomm NPU, so that programs run on it and not in the simulator."""
    import onnxruntime as ort
    import onnxruntime_qnn as qnn

    return any(d.ep_name == PROVIDER and "NPU" in str(d.device.type) for d in _devices(ort, qnn))


@contextlib.contextmanager
def _inside(folder: Path | None) -> Iterator[None]:
    """The compiler writes its schematic into the current folder, so that is `folder` meanwhile."""
    if folder is None:
        yield
        return
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _logged() -> Iterator[Any]:
    """Standard output and error of the process's C code go to a file meanwhile; gives a function that reads it. They are copied to error after."""
    with tempfile.TemporaryFile() as file:
        sys.stdout.flush()
        sys.stderr.flush()
        saved = os.dup(1), os.dup(2)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)

        def read() -> str:
            size = os.fstat(file.fileno()).st_size
            return os.pread(file.fileno(), 200_000, max(0, size - 200_000)).decode(errors="replace")

        try:
            yield read
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(saved[0], 1)
            os.dup2(saved[1], 2)
            os.close(saved[0])
            os.close(saved[1])
