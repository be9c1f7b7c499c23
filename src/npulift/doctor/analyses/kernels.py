"""An operator without a compiled kernel for this chip: which kernels are installed, and which chip needs them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from npulift.doctor.diagnose import Found
from npulift.doctor.records import Cause, Line
from npulift.findings import Severity
from npulift.messages import _


class Kernels:
    """Works on signatures and facts."""

    literals: tuple[str, ...] = ()
    limit = 1

    def line(self, line: Line) -> None:
        """Nothing of its own."""

    def causes(self, found: Found) -> Iterator[Cause]:
        """Compare chip and kernels."""
        if not found.has("operator-no-binary"):
            return
        match = found.matches["operator-no-binary"]
        lines = found.take("operator-no-binary")
        operator = match.groups.get("op", "?")
        chip = next(iter(found.facts.chips), None)
        needed = package_of(chip) if chip else None
        present = list(found.facts.kernels)
        wrong = bool(needed and present and needed not in present)
        compared = ""
        if wrong:
            compared = _(" Kernels for {present} are installed, the chip {chip} needs {needed}: package and chip do not match.").format(present=", ".join(present), chip=chip, needed=needed)
        elif needed:
            compared = _(" The chip is {chip}, which needs the kernels of {needed}.").format(chip=chip, needed=needed)
        package = f"Ascend-cann-kernels-{(needed or 'ascendXXX').removeprefix('ascend')}"
        yield Cause(
            "operator-no-binary", Severity.ERROR, "medium",
            _("There is no precompiled kernel of operator {op} for this chip (561000): the kernels package is missing, or built for another chip or another version.").format(op=operator) + compared,
            (
                _("Install the kernels package of this chip and of the same version as the toolkit: {package}_<version>_linux-<arch>.run --install (or the same from conda/apt), then source set_env.sh again.").format(package=package),
                _("See what is there: ls $ASCEND_OPP_PATH/built-in/op_impl/ai_core/tbe/kernel"),
                _("In a container: take the image for this chip (names end in 910b, a3, 310p)."),
            ),
            tuple(dict.fromkeys([*lines, *([found.facts.chips[chip]] if chip else []), *found.facts.kernels.values()]))[:6],
            source="hiyouga/LlamaFactory#3796; hiyouga/LlamaFactory#3779", count=match.count, details={"operator": operator, "chip": chip, "needed": needed, "present": present})


def package_of(chip: str) -> str:
    """Kernels folder of a chip: '910B3' gives 'ascend910b'."""
    chip = chip.upper()
    if chip.startswith("910B"):
        return "ascend910b"
    if chip.startswith(("910_93", "910C")):
        return "ascend910_93"
    if chip.startswith("310P"):
        return "ascend310p"
    if chip.startswith("310B"):
        return "ascend310b"
    return "ascend" + re.sub(r"\W", "", chip).lower().replace("910a", "910").replace("910prob", "910")


def new() -> Kernels:
    """A fresh one."""
    return Kernels()
