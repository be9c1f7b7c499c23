"""Target onnxruntime: the CPU provider of ONNX Runtime.

Options: precision 'f32' | 'int8'; calibration (.npz path) and ignored (positions, among the operators with weights, that stay in float)
for int8; threads (int).
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npulift.measured import Kind
from npulift.messages import _
from npulift.targets.base import Placed, Placement, Program, Target
from npulift.targets.calibration import read_calibration

if TYPE_CHECKING:
    from npulift.capture import Capture
    from npulift.changes import Change, Variant
    from npulift.profile import Profile

_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


class OnnxRuntime(Target):
    """ONNX Runtime's CPU execution provider."""

    families = ("onnxruntime",)
    load_only = frozenset({"threads", "sizes"})
    reshapes = True

    @property
    def device(self) -> str:
        """The host CPU."""
        return "CPU"

    def missing(self) -> str:
        """Whether the package is here."""
        try:
            import onnxruntime  # noqa: F401
        except ImportError:
            return _("onnxruntime is not installed: pip install onnxruntime")
        return ""

    def compile(self, source: Path, options: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Export to ONNX, quantise where asked."""
        import onnx
        import onnxruntime
        import torch

        from npulift.onnx_export import export_onnx

        path = folder / "model.onnx"
        export_onnx(torch.export.load(source), path)
        weighted = _weighted(onnx.load(path, load_external_data=False))
        if options.get("precision") == "int8":
            _quantise(path, options, weighted)
        return {"onnxruntime": onnxruntime.__version__, "quantisable": len(weighted)}

    def load(self, folder: Path, options: dict[str, Any]) -> Program:
        """Make a session."""
        return OnnxProgram(folder / "model.onnx", options)

    def placement(self, source: Path, options: dict[str, Any]) -> Placement | None:
        """ONNX Runtime's own assignment of nodes to providers."""
        import onnxruntime as ort

        with tempfile.TemporaryDirectory() as folder:
            self.compile(source, options, Path(folder))
            session_options = ort.SessionOptions()
            session_options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            session_options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
            session = ort.InferenceSession(str(Path(folder) / "model.onnx"), session_options, providers=["CPUExecutionProvider"])
            placed = [
                Placed(node.name, node.op_type, "CPU", part.ep_name == "CPUExecutionProvider")
                for part in session.get_provider_graph_assignment_info()
                for node in part.get_nodes()
            ]
        return Placement(tuple(placed), "provider assignment", 0, 0)

    def changes(self, capture: Capture, variant: Variant) -> Iterator[Change]:
        """Precision and threads."""
        from npulift.targets.host_changes import host_changes

        yield from host_changes(capture, variant, "onnxruntime")


def _weighted(model: Any) -> list[str]:
    return [n.name for n in model.graph.node if n.op_type in _WEIGHTED]


def _quantise(path: Path, options: dict[str, Any], weighted: list[str]) -> None:
    """QDQ int8 by ONNX Runtime's quantiser: activations uint8, weights int8 by channel."""
    import onnxruntime as ort
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    names = [i.name for i in ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).get_inputs()]
    samples = read_calibration(Path(options["calibration"]))

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._next = iter(dict(zip(names, sample, strict=True)) for sample in samples)

        def get_next(self) -> Any:
            return next(self._next, None)

    left = [weighted[i] for i in options.get("ignored", ()) if i < len(weighted)]
    with tempfile.TemporaryDirectory() as folder:
        prepared, quantised = Path(folder) / "prepared.onnx", Path(folder) / "quantised.onnx"
        quant_pre_process(str(path), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared), str(quantised), Reader(), quant_format=QuantFormat.QDQ, per_channel=True,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, nodes_to_exclude=left,
        )
        path.write_bytes(quantised.read_bytes())


class OnnxProgram(Program):
    """A session with positional inputs."""

    device = "CPU"

    def __init__(self, path: Path, options: dict[str, Any]) -> None:
        self._path, self._options = path, options
        self._session = self._open()
        self._names = [i.name for i in self._session.get_inputs()]

    def _open(self, profile: str = "") -> Any:
        import onnxruntime as ort

        session_options = ort.SessionOptions()
        session_options.log_severity_level = 3
        session_options.intra_op_num_threads = int(self._options.get("threads", 0) or os.cpu_count() or 1)
        if profile:
            session_options.enable_profiling = True
            session_options.profile_file_prefix = profile
        return ort.InferenceSession(str(self._path), session_options, providers=["CPUExecutionProvider"])

    def __call__(self, *inputs: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
        """Run once."""
        return tuple(self._session.run(None, dict(zip(self._names, map(np.ascontiguousarray, inputs), strict=True))))

    def profile(self, inputs: tuple[np.ndarray[Any, Any], ...], runs: int) -> Profile | None:
        """ONNX Runtime's own profile, a row a node and run."""
        from npulift.profile import Profile

        with tempfile.TemporaryDirectory() as folder:
            session = self._open(str(Path(folder) / "run"))
            feed = dict(zip(self._names, map(np.ascontiguousarray, inputs), strict=True))
            for _run in range(runs + 3):
                session.run(None, feed)
            events = json.loads(Path(session.end_profiling()).read_text())
        starts = sorted(e["ts"] for e in events if e.get("name") == "model_run")
        first = starts[3] if len(starts) > 3 else 0
        rows = [
            {"name": e["name"].removesuffix("_kernel_time"), "type": e["args"].get("op_name", ""), "category": "kernel", "device": "CPU",
             "start_ns": int(e["ts"] * 1000), "duration_ns": int(e["dur"] * 1000)}
            for e in events if e.get("cat") == "Node" and e["name"].endswith("_kernel_time") and e["ts"] >= first
        ]
        return Profile.from_rows(rows, Kind.MEASURED, "onnxruntime profile", meta={"device": "CPU", "runs": runs})
