"""Loss scaling: a scale that settles is harmless, one that spirals down is not."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from npulift.doctor.diagnose import Found
from npulift.doctor.records import Cause, Line
from npulift.findings import Severity
from npulift.messages import _, ngettext

_NUMBER = r"([\d.]{1,24}(?:e[+-]?\d{1,4})?)"
_REDUCED = re.compile(
    rf"(?:reducing (?:loss scale )?to|setting loss scale to:?|loss scale (?:is )?(?:reduced|decreased|lowered) to|scale (?:down|reduced) to|loss_?scale:? \d[\d.]* ?-> ?) ?{_NUMBER}",
    re.IGNORECASE,
)
_SCALE = re.compile(rf"\b(?:loss[ _-]?)?scale[:= ]{{1,3}}{_NUMBER}", re.IGNORECASE)
_OVERFLOW = re.compile(r"\boverflow\s?[=:]\s?(1|true)\b|gradient overflow|overflow detected|OVERFLOW!|skipping step|skip(?:ped)?(?: this)? (?:step|iteration)|\bskip\b", re.IGNORECASE)
_FINE = re.compile(r"\boverflow\s?[=:]\s?(0|false)\b|\bstep\b\s*$|number of skipped iterations: {1,3}0\b", re.IGNORECASE)
_STEP = re.compile(r"'loss': |\bloss[:= ]{1,3}\d|\blm loss\b|\bStep ?\d", re.IGNORECASE)
_LOWEST = re.compile(r"Current loss scale already at minimum|loss scale is? (?:already )?at (?:its )?minimum|Minimum loss scale reached", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Event:
    """overflow: True skipped, False a step was taken, None unknown.   scale: after it, or None."""

    overflow: bool | None
    scale: float | None
    line: Line


class LossScale:
    """Collects the series (of the rank that speaks first, where ranks are named)."""

    literals = ("scale", "Scale", "overflow", "OVERFLOW", "'loss': ")
    limit = 200_000

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.first_scale: Event | None = None
        self.rank: int | None = None
        self.lowest: Line | None = None

    def line(self, line: Line) -> None:
        """Take one line."""
        text = line.text
        if _LOWEST.search(text):
            self.lowest = self.lowest or line
        reduced = _REDUCED.search(text)
        scale = reduced or _SCALE.search(text)
        overflow: bool | None = True if (reduced or _OVERFLOW.search(text)) and not _FINE.search(text) else False if _FINE.search(text) else None
        if scale is None and overflow is None:
            if self.events and _STEP.search(text):
                self._add(Event(None, None, line))
            return
        if overflow is None and scale is not None and not re.search(r"loss[ _-]?scale|grad[ _]?scal", text, re.IGNORECASE):
            return
        try:
            value = float(scale.group(1).rstrip(".")) if scale else None
        except ValueError:
            value = None
        if value is None and overflow is None:
            return
        if self.rank is None:
            self.rank = line.rank
        if line.rank != self.rank:
            return
        self._add(Event(overflow, value, line))

    def _add(self, event: Event) -> None:
        if len(self.events) < 200_000:
            self.events.append(event)

    def causes(self, found: Found) -> Iterator[Cause]:
        """Settled, spiralling, or still falling."""
        scales = [e for e in self.events if e.scale is not None]
        overflows = [e for e in self.events if e.overflow]
        if not scales or not overflows:
            if self.lowest is not None:
                yield _spiral([self.lowest], None, None, 1)
            return
        values = [e.scale for e in scales if e.scale is not None]
        first, last, lowest = values[0], values[-1], min(values)
        distinct = list(dict.fromkeys(values))
        halvings = sum(1 for a, b in itertools.pairwise(distinct) if b < a)
        taken = [i for i, e in enumerate(self.events) if e.overflow is False]
        after = self.events[max(i for i, e in enumerate(self.events) if e.overflow) + 1 :]
        settled_steps = sum(1 for e in after if e.overflow is False or (e.overflow is None and e.scale is None) or (e.overflow is None and e.scale == last))
        evidence = [overflows[0].line, *([overflows[len(overflows) // 2].line] if len(overflows) > 2 else []), scales[-1].line]
        found.replaced.update(("gradient-overflow-skip",))
        tiny = lowest < 32.0 or self.lowest is not None
        steady = bool(taken) and settled_steps >= 1 and last >= 32.0
        if not tiny and (steady or (settled_steps >= 1 and last >= 128.0 and len(overflows) <= 20) or (not taken and last >= 512.0 and len(overflows) <= 12)):
            at = int(last) if last == int(last) else last
            found.replaced.update(("nonfinite-training",))
            yield Cause(
                "loss-scale-settled", Severity.INFO, "high" if settled_steps else "medium",
                ngettext("The loss scale starts too high and settles at {at} after {n} halving; that is how dynamic scaling finds its value, and training goes on. "
                         "Until then each skipped step still updates buffers (batch-norm statistics).",
                         "The loss scale starts too high and settles at {at} after {n} halvings; that is how dynamic scaling finds its value, and training goes on. "
                         "Until then each skipped step still updates buffers (batch-norm statistics).", max(halvings, 1)).format(at=at, n=max(halvings, 1)),
                (_("Start where it ends: GradScaler(init_scale={at}) (mmcv/mmengine: loss_scale=dict(init_scale={at}); DeepSpeed: initial_scale_power {power}).").format(
                    at=at, power=max(0, int(last).bit_length() - 1)),),
                tuple(dict.fromkeys(evidence)), source="open-mmlab/mmdetection#9267", count=len(overflows),
                details={"first_scale": first, "last_scale": last, "halvings": halvings})
            return
        if tiny or (not taken and len(overflows) >= 5 and halvings >= 4):
            yield _spiral(list(dict.fromkeys(evidence)), first, last, len(overflows))
            return
        yield Cause(
            "loss-scale-falling", Severity.WARNING, "low",
            _("The loss scale falls from {first:g} to {last:g} in what was read, and whether it settles cannot be seen yet.").format(first=first, last=last),
            (
                _("Read on: a scale that stays above a few hundred is fine; one that goes on falling below 32 means that the values themselves are not finite."),
                _("Start lower: GradScaler(init_scale={at:g}).").format(at=last),
            ),
            tuple(dict.fromkeys(evidence)), source="open-mmlab/mmdetection#9267", count=len(overflows), details={"first_scale": first, "last_scale": last})


def _spiral(evidence: list[Line], first: float | None, last: float | None, count: int) -> Cause:
    fell = _("The loss scale went from {first:g} down to {last:g}. ").format(first=first, last=last) if first is not None and last is not None else _("The loss scale is at its minimum. ")
    return Cause(
        "loss-scale-spiral", Severity.ERROR, "high" if count >= 2 else "medium",
        _("Every step overflows, so lowering the scale is not the cure: the gradients (or the loss) are not finite at any scale, and no step is taken. ") + fell,
        (
            _("Find the first layer with a value that is not finite: torch.autograd.set_detect_anomaly(True) and forward hooks with torch.isfinite."),
            _("Use bfloat16 where the chip has it (910B, 910_93 and newer; not 910A, not 310P): it needs no loss scale."),
            _("Keep the loss, softmax, norms and reductions in float32 (autocast does; model.half() does not), and use finite fill values in masks (-1e4 in float16, not -inf or -1e9)."),
            _("On 910B and newer set INF_NAN_MODE_ENABLE=1, so that overflow shows as inf or nan; in saturation mode (0, the only one on 910A) values are clipped and the place is hidden."),
        ),
        tuple(evidence), more=_("The step of the first overflow, and the gradient norm before it."), source="hiyouga/LlamaFactory#8514; open-mmlab/mmdetection#9267; NVIDIA/apex#318",
        count=count, details={"first_scale": first, "last_scale": last})


def new() -> LossScale:
    """A fresh one."""
    return LossScale()
