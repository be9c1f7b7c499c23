"""Where the simulator's values first go wrong: intermediate values are made outputs, run on both, and the first that differs is narrowed down."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npulift.errors import NpuliftError
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.targets.qnn.building import Build
from npulift.targets.qnn.program import Deviation, QnnProgram, deviations
from npulift.targets.qnn.session import open_session
from npulift.targets.qnn.vendor_errors import VendorError

if TYPE_CHECKING:
    import onnx

_PROBES = 24  # values looked at in one run


def compare_with_cpu(build: Build, sample: list[np.ndarray[Any, Any]]) -> tuple[list[Deviation], list[Finding]]:
    """Run the program once in the simulator and on the CPU. (deviation by output, a finding when one is another result)."""
    program = QnnProgram(build.folder)
    feed = dict(zip(program._inputs, map(np.ascontiguousarray, sample), strict=True))
    try:
        outputs = program._run(feed)
    except NpuliftError as error:
        return [], [Finding("NPU706", "simulator-failed", Severity.ERROR, str(error))]
    found = deviations(program._outputs, outputs, program._reference.run(None, feed))
    wrong = [d for d in found if d.wrong]
    if not wrong:
        return found, []
    node = first_wrong(build, feed)
    op = build.prepared.origins.get(node) if node else None
    operator = next((n.op_type for n in build.prepared.model.graph.node if n.name == node), "") if node else ""
    message = _("The compiled program gives another result than the CPU for output {output} (cosine {cosine:.3f}), without an error.").format(
        output=wrong[0].output, cosine=wrong[0].cosine)
    if node:
        message += " " + _("It first goes wrong at {operator} ({node}).").format(operator=op.base.replace("::", ".") if op else operator, node=node)
    return found, [Finding(
        "NPU705", "wrong-values", Severity.ERROR, message, op.location if op else None, op.module if op else "",
        _("Write this operator another way; do not trust this program."), details={"node": node, "operator": operator, "cosine": wrong[0].cosine},
    )]


def first_wrong(build: Build, feed: dict[str, np.ndarray[Any, Any]]) -> str:
    """Name of the first node whose value the simulator gets wrong, '' when none shows (values that are looked at compile otherwise)."""
    nodes = [n for n in build.prepared.model.graph.node if n.op_type not in ("Constant", "QuantizeLinear", "DequantizeLinear")]
    low, high = 0, len(nodes)
    while high > low:
        step = max(1, (high - low) // _PROBES)
        chosen = list(range(low, high, step))
        verdicts = _probe(build, [nodes[i] for i in chosen], feed)
        if verdicts is None:
            return ""
        bad = next((k for k, wrong in enumerate(verdicts) if wrong), None)
        if bad is None:
            low = chosen[-1] + 1
        elif step == 1:
            return str(nodes[chosen[bad]].name)
        else:
            low, high = (chosen[bad - 1] + 1 if bad else low), chosen[bad] + 1
    return ""


def _probe(build: Build, nodes: list[onnx.NodeProto], feed: dict[str, np.ndarray[Any, Any]]) -> list[bool] | None:
    import onnx
    import onnxruntime as ort

    model = onnx.shape_inference.infer_shapes(build.prepared.model)
    known = {v.name: v for v in (*model.graph.value_info, *model.graph.output)}
    names = [n.output[0] for n in nodes]
    del model.graph.output[:]
    model.graph.output.extend(known[n] for n in names if n in known)
    names = [n for n in names if n in known]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "probe.onnx"
        onnx.save(model, path)
        try:
            opened = open_session(path, build.attempt.soc.number, options=build.attempt.provider_options())
            got = opened.session.run(names, feed)
        except (VendorError, RuntimeError, ValueError):
            return None
        except Exception:  # ONNX Runtime's own classes
            return None
        wanted = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(names, feed)
    wrong = {d.output for d in deviations(names, got, wanted) if d.wrong}
    return [n.output[0] in wrong for n in nodes]
