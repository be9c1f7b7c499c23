"""Change: one thing that may be tried. Trial: what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from npulift.findings import Finding
from npulift.measured import Measured
from npulift.model import ModelSpec


@dataclass(frozen=True)
class Variant:
    """A model on its way to a program: what would be compiled if one stopped now.

    spec: the user's spec; spec.module is a copy that changes may replace, never the user's own object.
    target: name of the target that compiles and runs it, e.g. 'openvino'.
    options: compile options by name (JSON types), e.g. {'precision': 'f16', 'threads': 2}; each target documents its own.
    applied: names of the changes applied so far, in order.
    """

    spec: ModelSpec
    target: str
    options: dict[str, Any] = field(default_factory=dict)
    applied: tuple[str, ...] = ()

    @property
    def module(self) -> torch.nn.Module:
        """The module as it is now."""
        return self.spec.module

    def with_module(self, module: torch.nn.Module) -> Variant:
        """The same with another module."""
        return replace(self, spec=replace(self.spec, module=module))

    def with_options(self, **options: Any) -> Variant:
        """The same with some options set; None removes one."""
        merged = {**self.options, **options}
        return replace(self, options={k: v for k, v in merged.items() if v is not None})


@dataclass(frozen=True)
class Change:
    """One thing that may be tried.

    name: kebab-case, stable, e.g. 'fold-batch-norm'.   summary: one sentence for the user, translated.
    finding: why it is proposed.   expected_gain: share of the time that may go, 0 to 1; a guess to order by, never reported as more.
    exact: True when results change by rounding only.   apply: returns the changed variant, or None when nothing applies any more;
        must not modify its argument.   key: what tells two proposals of the same name apart (an option's value), '' otherwise.
    """

    name: str
    summary: str
    expected_gain: float
    apply: Callable[[Variant], Variant | None]
    exact: bool = True
    finding: Finding | None = None
    key: str = ""

    @property
    def identity(self) -> str:
        """Name and key: the same for the same proposal in every run."""
        return f"{self.name}:{self.key}" if self.key else self.name


@dataclass(frozen=True)
class Trial:
    """What came of a change.

    verdict: 'kept' | 'dropped' | 'failed' | 'not-applicable'.   reason: one sentence, translated, with the figures that decided.
    candidate, incumbent: times from the same interleaved run, or None when it was not measured.
    error: largest absolute difference from eager by output, over all verification inputs; None when it did not run.
    """

    change: str
    expected_gain: float
    verdict: str
    reason: str
    candidate: Measured | None = None
    incumbent: Measured | None = None
    error: float | None = None
    relative_error: float | None = None
    metric: float | None = None

    def as_json(self) -> dict[str, Any]:
        """The form that reports and the journal keep."""
        return {
            "change": self.change,
            "expected_gain": self.expected_gain,
            "verdict": self.verdict,
            "reason": self.reason,
            "candidate": self.candidate.as_json() if self.candidate else None,
            "incumbent": self.incumbent.as_json() if self.incumbent else None,
            "max_abs_error": self.error,
            "relative_error": self.relative_error,
            "metric": self.metric,
        }
