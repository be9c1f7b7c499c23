"""The compiler's error codes in plain words."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from npulift.messages import N_, _

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FLOAT_REFUSED = 0
_MEANINGS = {
    1002: N_(
        "The compiler could not lay the graph out for this chip. It calls that a lack of memory, but the machine's memory is not what ran out: "
        "either an operator or a group of operators has no form for this chip in this precision (float GELU on a Hexagon v68, an RMS norm "
        "with its weight first, IsInf), or a tensor is too large for the chip's local memory."
    ),
    1000: N_(
        "The chip or the library lacks a feature that was asked for."
    ),
    1003: N_(
        "A service of the operating system failed: the driver of the NPU, or its remote procedure calls."
    ),
    1008: N_(
        "Libraries of different QNN versions were loaded together (libQnnHtp, libQnnSystem, the Skel on the device)."
    ),
    1009: N_(
        "A QNN library could not be loaded, or was loaded before in this process."
    ),
    3110: N_(
        "The operator was refused at validation: its data type, rank or parameters have no kernel on this chip. When "
        "every operator is refused, the Skel library was not found instead."
    ),
    4000: N_(
        "The back end could not be started: there is no such device here, or its driver is missing."
    ),
    5004: N_(
        "The context binary was written by another QNN version, or for another chip."
    ),
    5005: N_(
        "The context binary could not be opened: another QNN version, another chip, or a damaged file."
    ),
    6005: N_(
        "An operator with these data types or parameters does not exist for this chip."
    ),
    6021: N_(
        "The compiler's optimiser stopped on this graph."
    ),
    6022: N_(
        "The compiler could not finish the graph for this chip; an operator in it has no form there."
    ),
    6031: N_(
        "The run was given up. With dynamically quantised models (DynamicQuantizeLinear, MatMulInteger) it means that "
        "the NPU needs fixed scales: quantise with calibration data (QDQ) instead."
    ),
    14001: N_(
        "The compiler does not know this SoC number, or the device refused the configuration."
    ),
    0: N_(
        "This compiler takes no float convolutions for this chip, only quantised ones."
    ),
}
_CODE = (re.compile(r"Code: (\d+)"), re.compile(r"[Ee]rror code:? (?:0x)?(\d+)"), re.compile(r"Error: (\d+)"))


@dataclass(frozen=True, slots=True)
class VendorErrorCode:
    """code, name: as QNN has them.   meaning: in plain words (English; see `explain`).   source.   ways: ways out, in order."""

    code: int
    name: str
    meaning: str
    source: str
    ways: tuple[str, ...]


class VendorError(Exception):
    """The compiler stopped. code: its error code, -1 when it gave none.   text: what it said.   log: its log."""

    def __init__(self, code: int, text: str, log: str = "") -> None:
        super().__init__(text)
        self.code, self.text, self.log = code, text, log


@cache
def codes() -> dict[int, VendorErrorCode]:
    """vendor_errors.toml by code."""
    with (Path(__file__).parent / "vendor_errors.toml").open("rb") as file:
        entries = tomllib.load(file)["error"]
    return {e["code"]: VendorErrorCode(e["code"], e["name"], _MEANINGS[e["code"]], e["source"], tuple(e["ways"])) for e in entries}


def read_error(text: str, log: str = "") -> VendorError:
    """What ONNX Runtime raised, and what the provider logged, as a VendorError."""
    if "com.ms.internal.nhwc" in text and "was not selected" in text:
        return VendorError(FLOAT_REFUSED, text, log)
    for source in (text, log):
        for name, entry in ((e.name, e) for e in codes().values()):
            if name.startswith("QNN_") and name in source:
                return VendorError(entry.code, text, log)
        for pattern in _CODE:
            found = pattern.search(source)
            if found:
                return VendorError(int(found.group(1)), text, log)
    return VendorError(-1, text, log)


def explain(error: VendorError) -> str:
    """One or two sentences: the code, what it stands for, what is known about it."""
    entry = codes().get(error.code)
    if entry is None:
        first = error.text.strip().splitlines()[0] if error.text.strip() else "?"
        return _("The compiler stopped: {text}").format(text=first[:300])
    return _("The compiler stopped with error {code} ({name}): {meaning}").format(code=entry.code, name=entry.name, meaning=_(entry.meaning))
