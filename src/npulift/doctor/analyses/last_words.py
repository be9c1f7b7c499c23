"""When no signature knows the failure: CANN's own report lines, or the exception that ended in a vendor's package, in their own words."""

from __future__ import annotations

import re
from collections.abc import Iterator

from npulift.doctor.diagnose import Found
from npulift.doctor.records import Cause, Line
from npulift.findings import Severity
from npulift.messages import _

# The letters of CANN's report codes are those of its component; see aclError and the error code reference of CANN.
_REPORT = re.compile(r"\b(E[0-9A-Z][0-9A-Z]?\d{3,4}): ?(?:\[PID: ?\d{1,8}\] ?)?(?:\d{4}-\d\d-\d\d-[\d:.]{8,16} ?)?(.{8,400})")
_SOLUTION = re.compile(r"^\W{0,40}(?:\S{0,80}\s)?Solution: ?(.{8,400})")
_FRAME = re.compile(r'File "([^"]{1,300})", line (\d{1,7})')
_EXCEPTION = re.compile(r"(?:^|[\s\]:])((?:[A-Za-z_]\w{0,60}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception|Failure|NotImplemented|Fail|InvalidArgument|InvalidGraph)): ?(.{3,400})")
_VENDORS = re.compile(
    r"(torch_npu|torchair|vllm_ascend|mindspeed|mindie|sgl_kernel_npu|te_fusion|/tbe/|/acl/|onnxruntime|openvino|executorch|ethosu|rknn|rkllm|qai_hub|qti/aisw|nncf)", re.IGNORECASE)
_PLUGINS = re.compile(r"vllm_ascend|torch_npu|torchair|mindspeed|sgl_kernel_npu")
_FAMILIES = {
    "E1": "ATC / GE", "E2": "operator fusion", "E3": "AI CPU", "E4": "operator compiler", "E5": "operator compiler", "E6": "operator compiler", "E8": "tiling", "E9": "operator compiler",
    "EA": "ACL", "EB": "operator compiler", "EC": "TBE", "EE": "runtime", "EF": "LX fusion", "EG": "HCCL", "EH": "ACL", "EI": "HCCL", "EJ": "HCCP", "EK": "profiling", "EL": "driver", "EP": "profiling",
    "EZ": "operator library", "W1": "ATC / GE",
}


class LastWords:
    """Keeps the first report and the last exception."""

    literals = (
        "Error: ", "Exception: ", "Solution: ", 'File "', ".NotImplemented: ", ".Fail: ", ".InvalidArgument: ", ".InvalidGraph: ",
        *(f"E{n}0" for n in (10, 11, 13, 14, 16, 19, 20, 30, 40, 50, 60, 80, 90)), *(f"E{c}{n}" for c in "ABCEFGHIJKLPZ" for n in ("00", "10", "30", "99")),
    )
    limit = 20_000

    def __init__(self) -> None:
        self.report: tuple[str, str, Line] | None = None
        self.solution: tuple[str, Line] | None = None
        self.frame: tuple[str, Line] | None = None
        self.exception: tuple[str, str, Line] | None = None

    def line(self, line: Line) -> None:
        """Take one line."""
        if self.report is None and (found := _REPORT.search(line.text)) and found.group(1)[:2] in _FAMILIES:
            self.report = (found.group(1), found.group(2).strip(), line)
        elif self.report is not None and self.solution is None and line.file == self.report[2].file and (found := _SOLUTION.search(line.text)):
            self.solution = (found.group(1).strip(), line)
        if found := _FRAME.search(line.text):
            if _VENDORS.search(found.group(1)):
                self.frame = (f"{found.group(1)}:{found.group(2)}", line)
        elif found := _EXCEPTION.search(line.text):
            vendor = _VENDORS.search(found.group(1)) or (self.frame and 0 < line.number - self.frame[1].number <= 40 and line.file == self.frame[1].file)
            if vendor:
                self.exception = (found.group(1), found.group(2).strip(), line)

    def causes(self, found: Found) -> Iterator[Cause]:
        """Only when no signature says what failed."""
        if any(m.signature.severity is Severity.ERROR and not m.signature.wrapper for m in found.matches.values()):
            return
        logs = (
            _("Turn on the logs: ASCEND_GLOBAL_LOG_LEVEL=1, ASCEND_GLOBAL_EVENT_ENABLE=1, ASCEND_SLOG_PRINT_TO_STDOUT=1, and give the plog to `npulift doctor ~/ascend/log`."))
        if self.report:
            code, text, line = self.report
            own = (_("CANN's own advice: {text}").format(text=self.solution[0]),) if self.solution else ()
            yield Cause(
                "cann-report", Severity.ERROR, "low",
                _("No entry of npulift's knows this one. CANN ({family}) reports {code}: {text}").format(family=_FAMILIES[code[:2]], code=code, text=text),
                (*own, logs), (line, *((self.solution[1],) if self.solution else ())), source="CANN report line", details={"code": code, "family": _FAMILIES[code[:2]]})
        elif self.exception:
            name, text, line = self.exception
            where = _(" (raised below {frame})").format(frame=self.frame[0]) if self.frame else ""
            yield Cause(
                "vendor-exception", Severity.ERROR, "low",
                _("No entry of npulift's knows this one. The program ended in {name}: {text}").format(name=name, text=text) + where + self._plugin(name),
                (_("Search for the message in the issues of the package that raised it, with its version; give the whole log, not the last line, to `npulift doctor`."),),
                (*((self.frame[1],) if self.frame else ()), line), source="the log's own traceback", details={"exception": name})

    def _plugin(self, name: str) -> str:
        """What a missing name in a plug-in usually means."""
        if self.frame and _PLUGINS.search(self.frame[0]) and name.rpartition(".")[2] in ("AttributeError", "TypeError", "ImportError", "ModuleNotFoundError", "KeyError"):
            return _(" A plug-in that misses a name is most often of another version than the program it extends, or meets options that it does not support together.")
        return ""


def new() -> LastWords:
    """A fresh one."""
    return LastWords()
