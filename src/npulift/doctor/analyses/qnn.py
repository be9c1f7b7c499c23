"""Qualcomm's NPU through ONNX Runtime or ExecuTorch: where the Skel library is looked for, and what a bare execute error hides."""

from __future__ import annotations

import re
from collections.abc import Iterator

from npulift.doctor.diagnose import Found
from npulift.doctor.records import Cause, Line
from npulift.findings import Severity
from npulift.messages import _

_SKEL = re.compile(r"([^\s;:'\"]{0,300}?)/?(libQnnHtpV\d{2}Skel\.so)")
_DYNAMIC = re.compile(r"\b(DynamicQuantizeLinear|MatMulInteger|ConvInteger|DynamicQuantizeMatMul|DynamicQuantizeLSTM)\b")
_COUNTS = re.compile(r"CPUExecutionProvider: ?(\d{1,7}).{0,40}QNNExecutionProvider: ?(\d{1,7})")


class Qnn:
    """Collects paths, operators and placement."""

    literals = ("Skel.so", "DynamicQuantize", "MatMulInteger", "ConvInteger", "QNNExecutionProvider:")
    limit = 5000

    def __init__(self) -> None:
        self.skel: tuple[str, str, Line] | None = None
        self.dynamic: dict[str, Line] = {}
        self.counts: tuple[int, int, Line] | None = None

    def line(self, line: Line) -> None:
        """Take one line."""
        if found := _SKEL.search(line.text):
            self.skel = self.skel or (found.group(1), found.group(2), line)
        for operator in _DYNAMIC.findall(line.text):
            self.dynamic.setdefault(operator, line)
        if found := _COUNTS.search(line.text):
            self.counts = (int(found.group(1)), int(found.group(2)), line)

    def causes(self, found: Found) -> Iterator[Cause]:
        """Skel path, dynamic quantization."""
        if found.has("qnn-skel-load"):
            yield self._skel(found)
        if found.has("qnn-execute-error") and self.dynamic:
            yield self._dynamic(found)

    def _skel(self, found: Found) -> Cause:
        lines = found.take("qnn-skel-load", "qnn-user-driver-path")
        for consequence in ("qnn-validate-op", "qnn-device-config", "qnn-all-cpu", "ort-node-placement", "qnn-finalize-1002", "qnn-device-create"):
            found.linked.setdefault(consequence, set()).add("qnn-skel-path")
        folder, name, line = self.skel or ("", "libQnnHtpV??Skel.so", None)
        unset = found.facts.environment.get("ADSP_LIBRARY_PATH")
        state = _(" ADSP_LIBRARY_PATH is unset.") if unset is not None and not unset[0] else ""
        where = folder or "<folder of libQnnHtpV??Skel.so>"
        counts = _(" All {n} nodes therefore run on the CPU.").format(n=self.counts[0]) if self.counts and self.counts[1] == 0 else ""
        return Cause(
            "qnn-skel-path", Severity.ERROR, "high" if self.skel or state else "medium",
            _("The DSP's loader does not find {name}: its folder is not on ADSP_LIBRARY_PATH.").format(name=name) + state + counts
            + _(" Operators that then fail validation (3110) are a follow-up, and look like missing operator support without being it."),
            (
                f"export ADSP_LIBRARY_PATH=\"{where}\"" + _("   (on Android also: export LD_LIBRARY_PATH=\"{where}:$LD_LIBRARY_PATH\"; on Android entries of ADSP_LIBRARY_PATH are separated by ';')").format(where=where),
                _("The Skel's number must be the chip's architecture (V73, V75, V79, ...), and Skel, Stub and libQnnHtp.so must be of one SDK version."),
                _("Set session.disable_cpu_ep_fallback=1 as a tripwire: the session then refuses to start instead of running on the CPU unnoticed."),
            ),
            tuple(dict.fromkeys([*lines, *([line] if line else []), *([unset[1]] if unset else [])])), more=_("logcat | grep -i adsp (Android) or dmesg | grep -i fastrpc (Linux): the loader's own message."),
            source="onnxruntime/onnxruntime-qnn#593; microsoft/onnxruntime#26845; microsoft/onnxruntime#28899", details={"folder": folder or None, "library": name})

    def _dynamic(self, found: Found) -> Cause:
        match = found.matches["qnn-execute-error"]
        lines = found.take("qnn-execute-error")
        operators = ", ".join(self.dynamic)
        return Cause(
            "qnn-dynamic-quantization", Severity.ERROR, "high",
            _("The model is dynamically quantized ({operators}), and the HTP needs scales that are known beforehand: the session builds, and each run ends in the bare code {code}.").format(
                operators=operators, code=match.groups.get("code", "6031")),
            (
                _("Quantize statically, in QDQ form with calibration data: onnxruntime.quantization.execution_providers.qnn.get_qnn_qdq_config and quantize(); or give the float model (HTP runs it in float16)."),
                _("Set session.disable_cpu_ep_fallback=1 and look at get_provider_graph_assignment_info() to see the placement before the first run."),
            ),
            tuple(dict.fromkeys([*lines, *self.dynamic.values()])), source="microsoft/onnxruntime#25334", details={"operators": list(self.dynamic), "code": match.groups.get("code")})


def new() -> Qnn:
    """A fresh one."""
    return Qnn()
