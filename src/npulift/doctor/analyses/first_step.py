"""A first step that takes far longer than the later ones: operators are compiled just in time, once."""

from __future__ import annotations

import re
from collections.abc import Iterator

from npulift.doctor.diagnose import Found
from npulift.doctor.records import Cause, Line
from npulift.findings import Severity
from npulift.messages import _

_NAMED = re.compile(r"\b(?:(first)|second|third)?\s?(?:step|iteration|iter|image|inference|run|request|token|batch)\b\s{0,2}#?(\d{1,6}(?![\d.]))?\s{0,3}[:=]?\s{0,3}(?:took |takes |time[ :=]{1,3})?([\d.]{1,12}) ?(ms|s|sec|seconds)\b", re.IGNORECASE)
_BAR = re.compile(r"(\d{1,9})/\d{1,9} \[[^\]]{0,60}?([\d.]{1,12}) ?(s/it|it/s)")
_OLD_CHIPS = ("310P", "910A", "910ProB")


class FirstStep:
    """Collects durations by step."""

    literals = ("step", "s/it", "it/s", "iter", "first", "First", "Iter", "Step", "jit_compile", "jitCompile")
    limit = 50_000

    def __init__(self) -> None:
        self.first: tuple[float, Line] | None = None
        self.later: list[tuple[float, Line]] = []
        self.on: Line | None = None

    def line(self, line: Line) -> None:
        """Take the durations of one line."""
        text = line.text
        if re.search(r"jit_?[cC]ompile['\"]?\s?[=:]\s?['\"]?(?:True|true|enable)\b", text):
            self.on = self.on or line
        for first, number, value, unit in _NAMED.findall(text):
            seconds = _float(value) / (1000.0 if unit.lower() == "ms" else 1.0)
            self._take(bool(first) or number in ("0", "1"), seconds, line) if first or number else None
        for number, value, unit in _BAR.findall(text):
            rate = _float(value)
            if rate > 0:
                self._take(number == "1", rate if unit == "s/it" else 1.0 / rate, line)

    def _take(self, is_first: bool, seconds: float, line: Line) -> None:
        if is_first and self.first is None:
            self.first = (seconds, line)
        elif self.first is not None and len(self.later) < 10_000:
            self.later.append((seconds, line))

    def causes(self, found: Found) -> Iterator[Cause]:
        """Compare the first with the middle of the later ones."""
        if self.first is None or not self.later:
            return
        first, line = self.first
        ordered = sorted(s for s, _l in self.later)
        later = ordered[len(ordered) // 2]
        if later <= 0 or first < 10 * later or first < 5.0:
            return
        chip = next((c for c in found.facts.chips if c.startswith(_OLD_CHIPS)), None)
        known = self.on is not None or chip is not None
        evidence = [line, self.later[len(self.later) // 2][1], *([self.on] if self.on else []), *([found.facts.chips[chip]] if chip else [])]
        on_chip = _(" On {chip} operators without a precompiled kernel are compiled when they are first met, and again for every new shape.").format(chip=chip) if chip else ""
        yield Cause(
            "first-step-compiles", Severity.WARNING, "high" if known else "medium",
            _("The first step takes {first:g} s and later ones {later:.3g} s: a cost that comes once (just-in-time compilation of operators), apart from the cost of each step.").format(first=first, later=later)
            + (_(" The log shows jit_compile switched on.") if self.on else "") + on_chip,
            (
                _("torch.npu.set_compile_mode(jit_compile=False) before the model is built: precompiled kernels are used where there are any (the default on 910B and newer; 310P and 910A compile just in time unless told otherwise)."),
                _("Keep shapes few: pad to buckets, drop the last short batch; a new shape is compiled anew."),
                _("Keep the compiled kernels between runs: a persistent ASCEND_CACHE_PATH; warm up before the service takes requests."),
            ),
            tuple(dict.fromkeys(evidence)), more=_("A profile of steps 1 to 3: host time in compilation, and which operators."),
            source="Comfy-Org/ComfyUI#10050; huggingface/transformers#24879", details={"first_seconds": first, "later_seconds": round(later, 4)})


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def new() -> FirstStep:
    """A fresh one."""
    return FirstStep()
