"""Environment variables that change behaviour: each explained, contradictions named."""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator
from pathlib import Path

from npulift.doctor.environment import Check, Machine
from npulift.findings import Severity
from npulift.messages import _, current_language

TABLE = Path(__file__).parent.parent / "data" / "environment_variables.csv"


@functools.cache
def table() -> dict[str, dict[str, str]]:
    """Variable to its row: meaning, meaning_zh, source."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def check(machine: Machine) -> Iterator[Check]:
    """Those that are set, then those that fight each other."""
    environ = machine.environ
    column = "meaning_zh" if current_language() == "zh" else "meaning"
    for name, row in table().items():
        if name in environ:
            yield Check(f"variable-{name}", f"{environ[name][:120]} ({row[column]})", details={"value": environ[name][:200]})
    yield from _contradictions(machine, environ)


def _contradictions(machine: Machine, environ: dict[str, str]) -> Iterator[Check]:
    conf = environ.get("PYTORCH_NPU_ALLOC_CONF", "").lower()
    if "expandable_segments:true" in conf and ("max_split_size_mb" in conf or "garbage_collection_threshold" in conf):
        yield Check("allocator-options", conf, Severity.ERROR, _("PYTORCH_NPU_ALLOC_CONF combines expandable_segments:True with an option that it excludes."), "export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True")
    if environ.get("ASCEND_LAUNCH_BLOCKING") == "1":
        yield Check("launch-blocking", "ASCEND_LAUNCH_BLOCKING=1", Severity.WARNING, _("ASCEND_LAUNCH_BLOCKING=1 waits after every operator: right for finding errors, several times slower."), "unset ASCEND_LAUNCH_BLOCKING")
        if environ.get("TASK_QUEUE_ENABLE") in ("1", "2"):
            yield Check("launch-blocking-queue", "TASK_QUEUE_ENABLE", Severity.INFO, _("TASK_QUEUE_ENABLE has no effect while ASCEND_LAUNCH_BLOCKING=1."), "unset ASCEND_LAUNCH_BLOCKING")
    if environ.get("ASCEND_GLOBAL_LOG_LEVEL") in ("0", "1"):
        yield Check("log-level", environ["ASCEND_GLOBAL_LOG_LEVEL"], Severity.WARNING, _("CANN logs at debug or info level: slow, and the disk fills."), "export ASCEND_GLOBAL_LOG_LEVEL=3")
    if environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0" and "ASCEND_HOME_PATH" in environ:
        yield Check("backend-autoload", "0", Severity.INFO, _("TORCH_DEVICE_BACKEND_AUTOLOAD=0: programs must import torch_npu themselves."), "")
    base = environ.get("HCCL_IF_BASE_PORT", "")
    if base and (not base.isdigit() or not 1024 <= int(base) <= 65520):
        yield Check("hccl-base-port", base, Severity.ERROR, _("HCCL_IF_BASE_PORT={value} leaves no valid ports (1024 to 65520).").format(value=base), "export HCCL_IF_BASE_PORT=55000")
    for name in ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        wanted = environ.get(name, "")
        folder = machine.path("/sys/class/net")
        if wanted and folder.is_dir():
            have = [p.name for p in folder.iterdir()]
            exact, names = wanted.startswith("="), [w for w in wanted.lstrip("=^").split(",") if w]
            if not wanted.startswith("^") and not any(h == n if exact else h.startswith(n) for n in names for h in have):
                yield Check(name.lower().replace("_", "-"), wanted, Severity.ERROR, _("{name}={value}, and this machine has no such interface ({have}).").format(name=name, value=wanted, have=", ".join(sorted(have)[:8])), _("Name an interface that the nodes share, or unset it."))
    connect, execute = environ.get("HCCL_CONNECT_TIMEOUT", ""), environ.get("HCCL_EXEC_TIMEOUT", "")
    if connect.isdigit() and execute.isdigit() and 0 < int(execute) < int(connect):
        yield Check("hccl-timeouts", f"{connect}, {execute}", Severity.WARNING, _("HCCL_EXEC_TIMEOUT ({execute} s) is shorter than HCCL_CONNECT_TIMEOUT ({connect} s): a slow connection then looks like a hang.").format(execute=execute, connect=connect), _("Make HCCL_EXEC_TIMEOUT the larger one."))
    table_file = environ.get("RANK_TABLE_FILE", "")
    if table_file and not machine.path(table_file).exists():
        yield Check("rank-table", table_file, Severity.ERROR, _("RANK_TABLE_FILE names a file that is not there."), "unset RANK_TABLE_FILE")
    if environ.get("INF_NAN_MODE_ENABLE") == "0":
        yield Check("saturation-mode", "INF_NAN_MODE_ENABLE=0", Severity.INFO, _("Saturation mode: overflow is clipped to the largest value and does not show as inf or nan."), "export INF_NAN_MODE_ENABLE=1")
