"""Proof that a rewritten forward() gives what the original gives: on the user's inputs, on generated ones, and along every path through its branches."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from npulift.controlflow.values import Refused
from npulift.messages import _
from npulift.model import ModelSpec
from npulift.verify import edge_inputs

TOLERANCE = 1e-5  # relative to the largest value; the rewrite may add in another order
MOST_PATHS = 64


@dataclass(frozen=True)
class Evidence:
    """inputs: how many calls were compared.   paths: how many different outcomes of the branches were walked by force.   error: largest absolute difference; relative: over the
    largest value.   skipped: calls on which the original itself raised."""

    inputs: int
    paths: int
    error: float
    relative: float
    skipped: int

    def as_json(self) -> dict[str, Any]:
        """JSON form."""
        return {"inputs": self.inputs, "paths": self.paths, "max_abs_error": self.error, "relative_error": self.relative, "skipped": self.skipped}


def verify(spec: ModelSpec, build: Callable[[torch.nn.Module], torch.nn.Module], original: Callable[[Any], torch.nn.Module], changed: Callable[[Any], torch.nn.Module]) -> Evidence:
    """Compare. Raises Refused with the first difference.

    original, changed: builders that take a hook for each branch on data: (line, condition) → bool, and (line, condition) → tensor.
    """
    before, after = copy.deepcopy(spec.module), build(spec.module)
    worst = relative = 0.0
    compared = skipped = 0
    for name, inputs in [("example", spec.inputs), *[("calibration", c) for c in spec.calibration[:8]], *_generated(spec)]:
        try:
            wanted = _run(before, inputs)
        except Exception:
            skipped += 1
            continue
        absolute, rel = _compare(wanted, after, inputs, name)
        worst, relative, compared = max(worst, absolute), max(relative, rel), compared + 1
    paths = 0
    for plan in _plans(original, spec):
        walked: set[int] = set()
        one, other = Forced(plan, walked), Forced(plan, walked)
        try:
            wanted = _run(original(one.python), spec.inputs)
        except Exception:
            continue
        absolute, rel = _compare(wanted, changed(other.tensor), spec.inputs, _("the path {plan}").format(plan=sorted(plan) or "-"))
        worst, relative, paths = max(worst, absolute), max(relative, rel), paths + 1
    if not compared:
        raise Refused(_("the original raised on every input, so nothing could be compared"))
    return Evidence(compared, paths, worst, relative, skipped)


class Forced:
    """Decides branches: true at the (line, how often it was met) pairs of the plan, else false; None as plan leaves them as they are."""

    def __init__(self, plan: set[tuple[int, int]] | None, walked: set[int]) -> None:
        self.plan, self.walked = plan, walked
        self.met: Counter[int] = Counter()

    def _decide(self, line: int) -> bool:
        number = self.met[line]
        self.met[line] += 1
        return (line, number) in (self.plan or set())

    def python(self, line: int, condition: Any) -> bool:
        bool(condition)
        return self._decide(line)

    def tensor(self, line: int, condition: Any) -> torch.Tensor:
        decided = self._decide(line)
        device = condition.device if isinstance(condition, torch.Tensor) else None
        return torch.tensor(decided, device=device)


def _plans(original: Callable[[Any], torch.nn.Module], spec: ModelSpec) -> Iterator[set[tuple[int, int]]]:
    """No branch taken; each of them alone; then pairs, until there are enough."""
    count = Forced(set(), set())
    try:
        _run(original(count.python), spec.inputs)
    except Exception:
        return
    sites = [(line, n) for line, times in sorted(count.met.items()) for n in range(times)]
    if not sites:
        return
    yield set()
    made = 1
    for site in sites:
        if made < MOST_PATHS:
            made += 1
            yield {site}
    for i, a in enumerate(sites):
        for b in sites[i + 1:]:
            if made < MOST_PATHS:
                made += 1
                yield {a, b}


def _run(module: torch.nn.Module, inputs: tuple[Any, ...]) -> list[torch.Tensor]:
    with torch.no_grad():
        return [v.detach().clone() for v in tree_leaves(module(*[v.clone() if isinstance(v, torch.Tensor) else v for v in inputs])) if isinstance(v, torch.Tensor)]


def _compare(wanted: list[torch.Tensor], after: torch.nn.Module, inputs: tuple[Any, ...], name: str) -> tuple[float, float]:
    try:
        got = _run(after, inputs)
    except Exception as error:
        raise Refused(_("the rewritten form raises on {name}: {error}").format(name=name, error=f"{type(error).__name__}: {error}".splitlines()[0][:160])) from error
    if len(got) != len(wanted):
        raise Refused(_("the rewritten form gives {n} outputs instead of {m}").format(n=len(got), m=len(wanted)))
    worst = relative = 0.0
    for g, w in zip(got, wanted, strict=True):
        if g.shape != w.shape:
            raise Refused(_("the rewritten form gives shape {a} instead of {b} on {name}: the sizes differ by path").format(a=list(g.shape), b=list(w.shape), name=name))
        if not w.numel():
            continue
        a, b = g.double(), w.double()
        same = (a == b) | (torch.isnan(a) & torch.isnan(b))
        gap = torch.where(same, torch.zeros_like(a), (a - b).abs())
        largest = float(gap.max())
        finite = b[torch.isfinite(b)].abs()
        scale = float(finite.max()) if finite.numel() else 0.0
        # Differences of nearly equal numbers (a standard deviation of constants) are judged by the size of the inputs.
        scale = max(scale, 1e-2 * _size(inputs))
        rel = largest / scale if scale > 1e-12 else largest
        if not (rel <= TOLERANCE):
            raise Refused(_("the rewritten form differs by {error:.3g} on {name}").format(error=largest, name=name))
        worst, relative = max(worst, largest), max(relative, rel)
    return worst, relative


def _size(inputs: tuple[Any, ...]) -> float:
    finite = [v[torch.isfinite(v)].abs().max() for v in inputs if isinstance(v, torch.Tensor) and v.is_floating_point() and bool(torch.isfinite(v).any())]
    return float(max(finite)) if finite else 0.0


def _generated(spec: ModelSpec) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Edge inputs, the example scaled and shifted so that thresholds are passed both ways, and random ones; booleans all true, all false and random (empty selections)."""
    yield from edge_inputs(spec)
    generator = torch.Generator().manual_seed(1)
    for scale in (-4.0, -1.0, -0.1, 0.01, 0.1, 0.5, 2.0, 10.0):
        yield f"example x {scale}", tuple(v * scale if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in spec.inputs)
    for kind in ("true", "false", "random", "random"):
        def booleans(v: Any, kind: str = kind) -> Any:
            if not isinstance(v, torch.Tensor) or v.dtype is not torch.bool:
                return v
            return torch.rand(v.shape, generator=generator) < 0.5 if kind == "random" else torch.full_like(v, kind == "true")

        if any(isinstance(v, torch.Tensor) and v.dtype is torch.bool for v in spec.inputs):
            yield f"booleans {kind}", tuple(booleans(v) for v in spec.inputs)
    for number in range(8):
        yield f"random {number}", tuple(
            (torch.randn(v.shape, generator=generator) * (0.2 + number)).to(v.dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in spec.inputs
        )
    nan = tuple(v.clone() if isinstance(v, torch.Tensor) else v for v in spec.inputs)
    for v in nan:
        if isinstance(v, torch.Tensor) and v.is_floating_point() and v.numel():
            v.view(-1)[0] = float("nan") if v.is_contiguous() else 0.0
    yield "a NaN", nan
