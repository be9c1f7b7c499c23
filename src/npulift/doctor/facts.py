"""Facts that logs state by the way and that conclusions need: environment variables, the chip, packages, folders, operators."""

from __future__ import annotations

import re

from npulift.doctor.records import Line

_VARIABLE = re.compile(
    r"\b((?:ASCEND|HCCL|ACL|GE|NPU|PYTORCH|TORCH|TASK|COMBINED|INF_NAN|CPU_AFFINITY|MULTI_STREAM|ADSP|LD|PYTHON|OMP|WORLD|MASTER|MINDIE|VLLM|GLOO|TP|TBE|AOE|TE)_?[A-Z0-9_]{0,60})"
    r"\s{0,3}(?:=|:)\s{0,3}([^\s;'\"]{1,300})|\b((?:ADSP|LD)_LIBRARY_PATH) (?:is )?(unset|empty|not set)"
)
_CHIP = re.compile(r"\b(?:Ascend[ -]?)?(310P\d?|310B\d?|910_93\d{0,2}|910B\d?C?|910C|910ProB|910A|910)\b(?!\d)")
_KERNELS = re.compile(r"(?:kernels?|opp)[^\n]{0,60}?\b(ascend(?:310p|310b|910b|910_93|910a|910))\b", re.IGNORECASE)
_FOLDER = re.compile(r"ls /usr/local/Ascend\S{0,40} ?(?:->|:)?\s*(.{1,300})")
_PACKAGES = re.compile(r"pip (?:list|freeze)[^:]{0,20}:\s*(.{1,2000})")
_CWD = re.compile(r"\b(?:cwd|pwd|working directory)[ :=]{1,3}(/\S{1,300})")


class Facts:
    """What was stated; the last statement of a variable counts.

    environment: name to (value, line).   chips: as named, e.g. '910B3'.   kernels: chips that operator kernels are installed for.
    """

    literals = (
        "ASCEND_", "HCCL_", "PYTORCH_NPU_ALLOC_CONF", "TASK_QUEUE_ENABLE", "INF_NAN_MODE", "LIBRARY_PATH", "VLLM_", "MASTER_PORT", "ACL_", "CPU_AFFINITY", "PYTHONPATH",
        "310P", "310B", "910A", "910B", "910C", "910_93", "910Pro", "Ascend910", "ls /usr/local/Ascend", "pip list", "pip freeze", "cwd", "opp kernels", "kernels present", "kernels",
    )
    limit = 5000

    def __init__(self) -> None:
        self.environment: dict[str, tuple[str, Line]] = {}
        self.chips: dict[str, Line] = {}
        self.kernels: dict[str, Line] = {}
        self.ascend_folder: tuple[str, Line] | None = None
        self.packages: tuple[str, Line] | None = None
        self.cwd: tuple[str, Line] | None = None

    def line(self, line: Line) -> None:
        """Take what a line states."""
        text = line.text
        for name, value, unset, state in _VARIABLE.findall(text):
            if name:
                self.environment[name] = (value.rstrip(",;)."), line)
            else:
                self.environment[unset] = ("", line)
                del state
                state = ""
        kernel_spans = [m.span(1) for m in _KERNELS.finditer(text)]
        for chip in _CHIP.finditer(text):
            if not any(start <= chip.start() < end for start, end in kernel_spans) and "/" not in text[max(0, chip.start() - 1) : chip.start()]:
                self.chips.setdefault(chip.group(1), line)
        for kernel in _KERNELS.findall(text):
            self.kernels.setdefault(kernel.lower(), line)
        if found := _FOLDER.search(text):
            self.ascend_folder = (found.group(1).strip(), line)
        if found := _PACKAGES.search(text):
            self.packages = (found.group(1), line)
        if found := _CWD.search(text):
            self.cwd = (found.group(1), line)

    def value(self, name: str) -> str | None:
        """Value of an environment variable as the log states it, or None."""
        return self.environment[name][0] if name in self.environment else None

    def lines(self, *names: str) -> list[Line]:
        """The lines that state these variables."""
        return [self.environment[n][1] for n in names if n in self.environment]
