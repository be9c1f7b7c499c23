"""A compiled program, run in the vendor's simulator (or on the NPU of a Snapdragon), beside the same graph on the CPU."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npulift.errors import NpuliftError
from npulift.messages import _
from npulift.targets.base import Program
from npulift.targets.qnn.building import RECORD, Build
from npulift.targets.qnn.session import on_device, open_session
from npulift.targets.qnn.vendor_errors import VendorError, explain, read_error

# Below this cosine, two float outputs are not the same result rounded, but another result: int8 programs of vision transformers stay above 0.96.
WRONG_BELOW = 0.9
SIMULATED_FLOPS = 2e10  # an inference of more is not simulated without being asked for: the simulator does the order of 1 GFLOP/s


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far an output is from the CPU's. relative: largest absolute difference over the largest absolute value; cosine: of the flat outputs."""

    output: str
    relative: float
    cosine: float

    @property
    def wrong(self) -> bool:
        """Too far to be rounding."""
        return not self.cosine >= WRONG_BELOW


class QnnProgram(Program):
    """Parts in a row, most often one. deviations: of every output so far from ONNX Runtime's CPU provider, the worst of each."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime as ort

        try:
            record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
            self._inputs, self._outputs = list(record["inputs"]), list(record["outputs"])
            parts = [(folder / str(p["file"]), p["device"] == "npu") for p in record["parts"]]
            soc = int(record["soc"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NpuliftError(_("qnn: {folder} holds no compiled program ({error}).").format(folder=folder, error=error), exit_code=1) from error
        self._sessions = []
        for path, on_npu in parts:
            if path.resolve().parent != folder.resolve():
                raise NpuliftError(_("qnn: the program names a file outside its folder: {file}").format(file=path.name), exit_code=1)
            if not on_npu:
                self._sessions.append(ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]))
                continue
            try:
                opened = open_session(path, soc)
            except VendorError as error:
                raise NpuliftError("qnn: " + explain(error), exit_code=1) from error
            here = {name for name, operator, on in opened.nodes if operator == "EPContext" and on}
            if not here or any(operator == "EPContext" and not on for _name, operator, on in opened.nodes):
                raise NpuliftError(_("qnn: the context binary was not taken by the NPU's provider; it would not run there."), exit_code=1)
            self._sessions.append(opened.session)
        self.device = "NPU" if on_device() else "simulator"
        settings = ort.SessionOptions()
        settings.log_severity_level = 3
        self._reference = ort.InferenceSession(str(folder / "reference.onnx"), settings, providers=["CPUExecutionProvider"])
        self.deviations: dict[str, Deviation] = {}

    def __call__(self, *inputs: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
        """Run once. Raises NpuliftError when an output is another result than the CPU's, not the same rounded."""
        feed = dict(zip(self._inputs, map(np.ascontiguousarray, inputs), strict=True))
        outputs = self._run(feed)
        for deviation in deviations(self._outputs, outputs, self._reference.run(None, feed)):
            worst = self.deviations.get(deviation.output)
            if worst is None or deviation.relative > worst.relative:
                self.deviations[deviation.output] = deviation
            if deviation.wrong:
                raise NpuliftError(
                    _("qnn: the compiled program gives another result than the CPU for output {output} (cosine {cosine:.3f}), without an error.").format(
                        output=deviation.output, cosine=deviation.cosine), exit_code=1)
        return outputs

    def _run(self, feed: dict[str, np.ndarray[Any, Any]]) -> tuple[np.ndarray[Any, Any], ...]:
        values = dict(feed)
        for session in self._sessions:
            names = [o.name for o in session.get_outputs()]
            values |= dict(zip(names, _patiently(session, {i.name: values[i.name] for i in session.get_inputs()}), strict=True))
        return tuple(values[name] for name in self._outputs)


def _patiently(session: Any, feed: dict[str, np.ndarray[Any, Any]]) -> Any:
    """Run, up to three times: on a loaded machine the simulator was seen to give up once (QNN_COMMON_ERROR_GENERAL) and to run the next time."""
    for attempt in range(3):
        try:
            return session.run(None, feed)
        except Exception as error:  # ONNX Runtime's own classes
            if attempt == 2:
                raise NpuliftError("qnn: " + explain(read_error(str(error))), exit_code=1) from error
            time.sleep(0.5)
    raise AssertionError


def simulate(folder: Path, sample: Any, reference: bytes | None = None) -> list[Deviation]:
    """One inference of a compiled program against its own graph on the CPU, or against another ONNX file with the same inputs and outputs."""
    import onnxruntime as ort

    program = QnnProgram(folder)
    feed = dict(zip(program._inputs, map(np.ascontiguousarray, sample), strict=True))
    session = program._reference if reference is None else ort.InferenceSession(reference, providers=["CPUExecutionProvider"])
    return deviations(program._outputs, program._run(feed), session.run(None, feed))


def worth_simulating(build: Build) -> bool:
    """Whether one inference is small enough to simulate by the way."""
    flops = sum(op.flops or 0 for op in {op.node: op for op in build.prepared.origins.values()}.values())
    return flops <= SIMULATED_FLOPS


def deviations(names: list[str], got: Any, wanted: Any) -> list[Deviation]:
    """How far outputs are from the reference's, by output."""
    found = []
    for name, a, b in zip(names, got, wanted, strict=True):
        if a.shape != b.shape:
            found.append(Deviation(name, float("inf"), 0.0))
            continue
        x, y = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
        if not x.size:
            continue
        if a.dtype.kind != "f":
            found.append(Deviation(name, float(np.mean(x != y)), 1.0))  # indices of ties may differ; a share, not an error
            continue
        finite = np.isfinite(y)
        if not np.isfinite(x[finite]).all():
            found.append(Deviation(name, float("inf"), 0.0))
            continue
        x, y = x[finite], y[finite]
        largest = float(np.abs(y).max()) if y.size else 0.0
        gap = float(np.abs(x - y).max()) if y.size else 0.0
        norms = float(np.linalg.norm(x) * np.linalg.norm(y))
        # A zero, or a value below what float16 can hold, has no direction.
        cosine = float(x @ y) / norms if norms > 1e-12 and largest > 1e-4 else 1.0
        found.append(Deviation(name, gap / largest if largest > 1e-12 else gap, cosine))
    return found
