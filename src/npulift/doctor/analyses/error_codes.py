"""Numbers that no signature knows: their name and meaning from the tables of torch_npu, ACL, the runtime and HCCL."""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from npulift.doctor.diagnose import Found
from npulift.doctor.records import Cause, Line
from npulift.findings import Severity
from npulift.messages import _, current_language

TABLE = Path(__file__).parent.parent / "data" / "error_codes.csv"
_CODE = re.compile(r"(?:error code is|errno:|runtime result =|ret(?:ult)? = |retcode[ :=]{1,3}|error code:?|failed ?:)\s{0,2}(\d{1,6})\b", re.IGNORECASE)
_HCCL = re.compile(r"HCCL function error: ?(\w{1,60})|OPS function error: ?(Hc\w{1,60})|HcclComm\w{0,40}|HcclGet\w{0,40}|HcclAll\w{0,40}|hcclComm\w{0,40}")


@functools.cache
def table() -> dict[int, tuple[str, str, str]]:
    """Code to (name, meaning, meaning in Chinese)."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {int(row["code"]): (row["name"], row["meaning"], row["meaning_zh"]) for row in csv.DictReader(file)}


class ErrorCodes:
    """Collects codes of lines in which no signature explains them."""

    literals = ("error code is", "errno:", "runtime result =", "HCCL function error", "ret = ", "error code", "failed :", "failed:")
    limit = 5000

    def __init__(self) -> None:
        self.codes: dict[int, list[Line]] = {}

    def line(self, line: Line) -> None:
        """Take the codes of one line."""
        hccl = bool(_HCCL.search(line.text))
        for text in _CODE.findall(line.text):
            code = int(text)
            if code in table() and (code > 1000 or hccl) and len(self.codes.setdefault(code, [])) < 5:
                self.codes[code].append(line)

    def causes(self, found: Found) -> Iterator[Cause]:
        """Only where nothing better is known about the same line."""
        explained = {e.place for i, m in found.matches.items() if not m.signature.wrapper for e in m.evidence}
        solid = any(m.signature.severity is Severity.ERROR and not m.signature.wrapper for m in found.matches.values())
        if solid or any(c.place in explained for lines in self.codes.values() for c in lines):
            return
        zh = current_language() == "zh"
        for code, lines in list(self.codes.items())[:3]:
            name, meaning, meaning_zh = table()[code]
            yield Cause(
                f"error-code-{code}", Severity.ERROR, "low",
                _("Error code {code} ({name}): {meaning}.").format(code=code, name=name, meaning=meaning_zh if zh else meaning),
                (
                    _("Make the failure exact: ASCEND_LAUNCH_BLOCKING=1 (one operator at a time, so the traceback is true), then run again."),
                    _("Turn on the logs: ASCEND_GLOBAL_LOG_LEVEL=1, ASCEND_GLOBAL_EVENT_ENABLE=1, ASCEND_SLOG_PRINT_TO_STDOUT=1, and give the plog to `npulift doctor ~/ascend/log`."),
                ),
                tuple(lines), more=_("~/ascend/log/debug/plog/plog-<pid>_*.log: the first [ERROR] there names the module that failed."),
                source="Ascend/pytorch NPUErrorCodes.h, hccl_types.h", details={"code": code, "name": name})
            return


def new() -> ErrorCodes:
    """A fresh one."""
    return ErrorCodes()
