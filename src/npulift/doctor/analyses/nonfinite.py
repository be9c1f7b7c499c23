"""Loss or gradient norm turns nan or inf: at which step, and what the last finite value was."""

from __future__ import annotations

import re
from collections.abc import Iterator

from npulift.doctor.diagnose import Found
from npulift.doctor.records import Cause, Line
from npulift.findings import Severity
from npulift.messages import _

_VALUE = re.compile(
    r"(?P<name>\b(?:[\w/]{0,40}loss\w{0,20}|grad[ _-]?norm|gnorm|ppl|perplexity)\b['\"]?)\s?(?:[:=]|is|\()?\s{0,3}(?:tensor\()?(?P<value>-?nan|-?inf(?:inity)?|-?\d[\d.]{0,20}(?:e[+-]?\d{1,4})?)\b",
    re.IGNORECASE,
)
_STEP = re.compile(r"\b(?:iter(?:ation)?|step|global_step|num_updates)s?\b['\"]?[\s:=\[#]{1,4}(\d{1,9})", re.IGNORECASE)
_EPOCH_ONLY = re.compile(r"\bepoch['\"]?[\s:=\[]{1,3}(\d{1,6}(?:\.\d{1,6})?)", re.IGNORECASE)


class NonFinite:
    """Follows losses and norms through the log."""

    literals = ("loss", "Loss", "grad_norm", "grad norm", "gnorm")
    limit = 500_000

    def __init__(self) -> None:
        self.last: tuple[str, str, Line] | None = None
        self.first: tuple[str, Line] | None = None
        self.bad = 0
        self.steps_after = 0
        self.zero_loss: Line | None = None

    def line(self, line: Line) -> None:
        """Take one line."""
        pairs = [(m.group("name").strip("'\""), m.group("value").lower()) for m in _VALUE.finditer(line.text)]
        if not pairs:
            return
        wrong = [(n, v) for n, v in pairs if "nan" in v or "inf" in v]
        if wrong:
            self.bad += 1
            if self.first is None:
                self.first = (f"{wrong[0][0]} = {wrong[0][1]}", line)
        elif self.first is None:
            self.last = (pairs[0][0], pairs[0][1], line)
        else:
            self.steps_after += 1

    def causes(self, found: Found) -> Iterator[Cause]:
        """Say when it began."""
        if self.first is None or "nonfinite-training" in found.replaced:
            return
        what, line = self.first
        where = _place(line.text)
        before = _(" The last finite value before it is {name} {value} ({place}).").format(name=self.last[0], value=self.last[1], place=self.last[2].place) if self.last else _(" No finite value stands before it: it is not finite from the start.")
        recovers = self.steps_after > self.bad
        yield Cause(
            "nonfinite-training", Severity.WARNING if recovers else Severity.ERROR, "medium" if recovers else "high",
            _("A value of the training is not finite: {what}{where}.").format(what=what, where=where) + before
            + (_(" Later steps are finite again, so the step was skipped or the value is only logged.") if recovers else ""),
            (
                _("Look at the first layer whose output is not finite (forward hooks with torch.isfinite); `npulift compare` shows it for one input in float16 or bfloat16.") if self.last else
                _("Check the inputs and the initial weights first: not finite at the very first step means data (empty batch, label out of range, division by zero), a mask with -inf over a whole row, or weights loaded in a dtype that cannot hold them."),
                _("Keep softmax, norms, losses and exponentials in float32; use bfloat16 rather than float16 where the chip has it; clip the gradient norm; lower the learning rate or lengthen its warm-up."),
                _("On 910B and newer set INF_NAN_MODE_ENABLE=1: in saturation mode an overflow is clipped instead of showing."),
            ),
            tuple(dict.fromkeys([line, *([self.last[2]] if self.last else [])])), more=_("The gradient norm of the steps before; the same steps in float32."),
            source="facebookresearch/fairseq#515; KaihuaTang/Scene-Graph-Benchmark.pytorch#29", count=self.bad, details={"value": what})


def _place(text: str) -> str:
    step = _STEP.search(text)
    if step:
        return _(" at step {step}").format(step=step.group(1))
    epoch = _EPOCH_ONLY.search(text)
    return _(" in epoch {epoch}").format(epoch=epoch.group(1)) if epoch else ""


def new() -> NonFinite:
    """A fresh one."""
    return NonFinite()
