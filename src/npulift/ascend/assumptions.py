"""Values that depend on data, in fake mode: kernels make none, so what is read back is zero, unless an assumption says otherwise."""

from __future__ import annotations

import sys
from typing import Any

_active = False
_by_line: dict[str, Any] = {}
_used: dict[tuple[str, int, str], dict[str, Any]] = {}


def install(by_line: dict[str, Any], *, fake: bool) -> None:
    """Let `npulift.assume` take effect, and give values read at 'file.py:12' what `by_line` says."""
    global _active
    _active = fake
    _by_line.update(by_line)
    if fake and by_line:
        _patch_readers()


def active() -> bool:
    """True in the process of a simulation in fake mode."""
    return _active


def note(value: Any, depth: int = 2) -> None:
    """Write down that the caller's line took `value`."""
    frame = sys._getframe(depth)
    key = (frame.f_code.co_filename, frame.f_lineno, repr(value)[:80])
    entry = _used.setdefault(key, {"file": key[0], "line": key[1], "value": key[2], "count": 0})
    entry["count"] += 1


def used() -> list[dict[str, Any]]:
    """[{file, line, value, count}] of the assumptions that were stated and met."""
    return list(_used.values())


def _patch_readers() -> None:
    import torch

    def wrap(name: str) -> None:
        original = getattr(torch.Tensor, name)

        def reader(self: torch.Tensor, *args: Any) -> Any:
            value = original(self, *args)
            if self.device.type == "npu":
                frame = sys._getframe(1)
                for place, assumed in _by_line.items():
                    file, _colon, line = place.rpartition(":")
                    if frame.f_lineno == int(line) and frame.f_code.co_filename.endswith(file):
                        note(assumed)
                        return type(value)(assumed) if isinstance(value, bool | int | float) else assumed
            return value

        setattr(torch.Tensor, name, reader)

    for name in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__"):
        wrap(name)
