"""Which chip is compiled for: by its number, its part number (sm8650) or its trade name (snapdragon-8-gen-3)."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from npulift.errors import NpuliftError
from npulift.messages import _

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True, slots=True)
class Soc:
    """A chip. number: the compiler's soc_model.   chip: part number.   name: trade name, '' where there is none.

    arch: Hexagon version, 0 when unknown.   takes_float: 'full' | 'partly' | 'no-convolution' | 'untried' (see socs.toml).
    """

    number: int
    chip: str
    name: str = ""
    arch: int = 0
    takes_float: str = "untried"

    @property
    def label(self) -> str:
        """For people: 'snapdragon-8-gen-3 (SM8650, 57)'."""
        parts = ", ".join(filter(None, (self.chip if self.name else "", str(self.number))))
        return f"{self.name or self.chip} ({parts})"


UNNAMED_DEFAULT = Soc(0, "no SoC named", "", 0, "partly")  # the vendor's own default, which behaves as 30 does


@cache
def table() -> dict[str, Any]:
    """socs.toml."""
    with (Path(__file__).parent / "socs.toml").open("rb") as file:
        return tomllib.load(file)


@cache
def known() -> tuple[Soc, ...]:
    """Every chip of the table, by number."""
    return tuple(Soc(s["id"], s["chip"], s["name"], s["arch"], s["float"]) for s in table()["soc"])


def default() -> Soc:
    """The chip that `qnn` without more stands for."""
    return find(table()["default"])


def find(text: str) -> Soc:
    """The chip of a number or a name. Raises NpuliftError with the list for one that is not known or that the compiler refuses."""
    wanted = _plain(text)
    for soc in known():
        if wanted in (str(soc.number), _plain(soc.chip), _plain(soc.name) or None):
            return soc
    if wanted == "0":
        return UNNAMED_DEFAULT
    if wanted.isdigit() and int(wanted) in table()["unnamed"]:
        return Soc(int(wanted), f"soc_model {int(wanted)}", "", 0, "full")
    names = ", ".join(f"{s.name or s.chip.lower()} ({s.number})" for s in known() if s.takes_float != "no-convolution" or s.name)
    if wanted.isdigit() and int(wanted) in table()["refused"]:
        raise NpuliftError(
            _("qnn: the compiler refuses SoC number {soc} (QNN_DEVICE_ERROR_INVALID_CONFIG), and ONNX Runtime would then silently run everything on the CPU. "
              "There are: {names}.").format(soc=text, names=names)
        )
    raise NpuliftError(_("qnn: no SoC is called {soc}. There are: {names}.").format(soc=text, names=names))


def _plain(text: str) -> str:
    """Letters and digits alone, so that 'Snapdragon 8 Gen 3' is 'snapdragon-8-gen-3'."""
    return re.sub(r"[^a-z0-9]", "", text.lower().replace("+", "plus"))
