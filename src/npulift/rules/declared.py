"""Where the user's file declares a dim that varies."""

from __future__ import annotations

import linecache
import re
from pathlib import Path

from npulift.capture import Capture
from npulift.findings import Location


def dim_line(capture: Capture, name: str) -> Location | None:
    """The line of the MODEL file that says Dim('name'), None when it cannot be found."""
    file = capture.spec.origin.rpartition(":")[0]
    if not file.endswith(".py") or not Path(file).exists():
        return None
    path = str(Path(file).resolve())
    pattern = re.compile(rf"""Dim\(\s*(name\s*=\s*)?['"]{re.escape(name)}['"]""")
    for number, line in enumerate(linecache.getlines(path), 1):
        if pattern.search(line):
            return Location(path, number, "")
    return None
