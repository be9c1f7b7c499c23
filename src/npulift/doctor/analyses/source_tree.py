"""torch_npu imported from a source folder instead of the installed package."""

from __future__ import annotations

import re
from collections.abc import Iterator

from npulift.doctor.diagnose import Found
from npulift.doctor.records import Cause, Line
from npulift.findings import Severity
from npulift.messages import _

_FILE = re.compile(r"File \"([^\"]{1,300}?)/(torch_npu|torch|vllm_ascend|onnxruntime|openvino|executorch)/[^\"]{1,200}\", line")


class SourceTree:
    """Remembers from where packages were loaded."""

    literals = ("/torch_npu/", "/vllm_ascend/", "/torch/__init__.py", "/onnxruntime/__init__.py", "/onnxruntime/capi/", "/executorch/")
    limit = 20_000

    def __init__(self) -> None:
        self.places: dict[str, tuple[str, Line]] = {}

    def line(self, line: Line) -> None:
        """Take one line of a traceback."""
        for folder, package in _FILE.findall(line.text):
            self.places[package] = (folder, line)

    def causes(self, found: Found) -> Iterator[Cause]:
        """Below site-packages is installed; elsewhere is a source tree."""
        match = found.matches.get("extension-module-missing")
        if match is None:
            return
        package = match.groups.get("package", "torch_npu")
        folder, line = self.places.get(package, ("", None))
        if "site-packages" in folder or "dist-packages" in folder:
            return
        lines = found.take("extension-module-missing")
        cwd = found.facts.cwd[0] if found.facts.cwd else ""
        sure = bool(folder) and (not cwd or folder.startswith(cwd) or cwd.startswith(folder))
        place = _("{folder}/{package} is loaded, a source folder at or below the current directory").format(folder=folder, package=package) if folder else _("a source folder in the current directory is loaded")
        yield Cause(
            "inside-source-tree", Severity.ERROR, "high" if sure else "medium",
            _("Python picks up the sources instead of the installed package: {place}, and it holds no compiled {package}._C.").format(place=place, package=package),
            (
                _("Change to another directory and run again: cd ~ && python -c \"import {package}\"").format(package=package),
                _("Take the source folder off PYTHONPATH if it stands there."),
            ),
            tuple(dict.fromkeys([*lines, *([line] if line else []), *([found.facts.cwd[1]] if found.facts.cwd else [])])),
            more=_("python -c \"import {package}; print({package}.__file__)\" from both places.").format(package=package), source="Ascend/pytorch#24", details={"folder": folder, "cwd": cwd})


def new() -> SourceTree:
    """A fresh one."""
    return SourceTree()
