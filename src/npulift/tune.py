"""tune: profile, form a hypothesis, change one thing, verify, keep what wins; a bundle and an honest report at the end."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from npulift import __version__, bundle, rewrites, rules, timing, verify
from npulift.capture import Capture
from npulift.changes import Change, Trial, Variant
from npulift.controlflow import rewritten_spec
from npulift.errors import NpuliftError
from npulift.findings import Finding
from npulift.journal import Journal
from npulift.loading import load_model
from npulift.measured import Kind, Measured
from npulift.messages import _
from npulift.model import ModelSpec
from npulift.profile import Profile
from npulift.report.document import Report
from npulift.targets.base import Placement, Score, Target, find_target, target_classes
from npulift.tracing import capture as capture_model
from npulift.tune_report import Outcome, make_report
from npulift.verify import Check, Reference
from npulift.workbench import Built, Running, Workbench, is_host, plain_variants
from npulift.worker import WorkerError

GOALS = ("latency", "throughput", "size")
FINAL_ROUNDS = 25
MORE_ROUNDS = 2  # how often the final comparison goes on for as many rounds again while it is not clear
Say = Callable[[str, float | None], None]


@dataclass(frozen=True)
class Settings:
    """budget: seconds for trials. goal: what must get better. max_error: relative error allowed to lossy changes (see verify.Check), None
    for the spec's own tolerance. metric_drop: how much the metric may lose. out: the bundle's folder. seed: of timing order and searches."""

    target: str
    budget: float = 300.0
    goal: str = "latency"
    max_error: float | None = None
    metric_drop: float = 0.0
    out: Path = Path("npulift-out")
    seed: int = 0


def tune(
    model: str | ModelSpec | tuple[Any, Any],
    target: str = "openvino",
    *,
    budget: float = 300.0,
    goal: str = "latency",
    max_error: float | None = None,
    metric_drop: float = 0.0,
    out: Path | str | None = None,
    seed: int = 0,
    say: Say = lambda text, done: None,
) -> Report:
    """Tune a model for a target; the bundle is in `out` afterwards. A run that was killed goes on when it is called again.

    budget: seconds to spend on trials; the baselines and the final comparison come on top.
    Raises NpuliftError for a model or a target that cannot be tuned, with the reason.
    """
    if goal not in GOALS:
        raise NpuliftError(_("There is no goal {goal}; there are {goals}.").format(goal=goal, goals=", ".join(GOALS)))
    spec = load_model(model)
    folder = Path(out) if out is not None else Path("npulift-out") / f"{spec.name}-{target.replace(':', '-')}"
    settings = Settings(target, budget, goal, max_error, metric_drop, folder, seed)
    chosen = find_target(target)
    missing = chosen.missing()
    if missing:
        raise NpuliftError(missing, exit_code=1)
    say(_("running {model} eagerly").format(model=spec.name), None)
    wanted = verify.reference(spec)
    say(_("capturing the graph"), None)
    seen = capture_model(spec)
    found = [*rules.findings(seen, chosen), *chosen.findings(seen)]
    rewritten = rewritten_spec(seen)
    if rewritten is not None:  # eager stays the user's own; what is compiled is the verified form of it
        seen = capture_model(rewritten[0])
    if seen.exported is None or seen.draft:
        return _cannot_export(spec, settings, seen, found)
    work = folder.parent / f".{folder.name}.work"
    _writable(work)
    with contextlib.closing(Journal(work / "journal.sqlite", _identity(spec, seen, settings))) as journal:
        if not journal.resumed:
            for part in ("sources", "programs"):
                shutil.rmtree(work / part, ignore_errors=True)
        with Workbench(work) as bench:
            run = _Run(spec, settings, chosen, seen, wanted, bench, journal, say, found)
            if rewritten is not None:
                run.base = replace(run.base, spec=rewritten[0], applied=tuple(f"source-{'-'.join(r.kinds)}" for r in rewritten[1]))
                run.notes += [_("{name}.{function} was rewritten before compiling: {reason}").format(name=r.class_name, function=r.function, reason=r.reason) for r in rewritten[1]]
            outcome = run.go()
    shutil.rmtree(work, ignore_errors=True)
    return make_report(outcome)


class _Run:
    """One tuning run: what it holds is what its steps share."""

    def __init__(
        self, spec: ModelSpec, settings: Settings, target: Target, seen: Capture, wanted: Reference, bench: Workbench, journal: Journal, say: Say,
        findings: list[Finding],
    ) -> None:
        self.spec, self.settings, self.target, self.seen, self.wanted = spec, settings, target, seen, wanted
        self.bench, self.journal, self.say, self.findings = bench, journal, say, findings
        self.inputs = wanted.samples[0][0]
        self.base = Variant(spec, target.name)
        self.trials: list[Trial] = []
        self.notes: list[str] = []
        self.errors: dict[str, float] = {}  # relative error of the untuned contestants

    def go(self) -> Outcome:
        plain, failures = self._plain()
        if not plain:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in failures.items())
            raise NpuliftError(_("No compiler took {model}. {reasons}").format(model=self.spec.name, reasons=reasons), exit_code=1)
        incumbent, start = self._incumbent(plain)
        best = self._search(incumbent)
        return self._finish(plain, failures, best, start)

    # --- baselines ----------------------------------------------------------------------------------------------------------

    def _plain(self) -> tuple[dict[str, Running], dict[str, str]]:
        """The untuned compiled contestants that give the right answer, and why the others are out."""
        running: dict[str, Running] = {}
        failures: dict[str, str] = {}
        for name, variant in plain_variants(self.target, self.base).items():
            self.say(_("compiling for {target} as it comes").format(target=name), None)
            try:
                built = self.bench.build(variant)
                program = self.bench.open(built)
                check = verify.compare(program.run, self.spec, self.wanted, edges=False)
            except (WorkerError, NpuliftError) as error:
                failures[name] = _first_line(error)
                continue
            wrong = self._refused(check)
            if wrong:
                if is_host(self.target):
                    failures[name] = wrong
                    continue
                self.notes.append(_("{name} as it comes: {reason} Changes may be off by as much, but not more.").format(name=name, reason=wrong))
            running[name] = program
            self.errors[name] = check.relative
            self.notes += [note for note in built.facts.get("notes", ()) if note not in self.notes]
        return running, failures

    def _incumbent(self, plain: dict[str, Running]) -> tuple[Running, dict[str, Any]]:
        """Where the search starts: the best recorded by a run that was killed, else the fastest untuned program."""
        record = self.journal.incumbent()
        if record is not None:
            self.trials = [_trial_from(t) for t in self.journal.trials()]
            self.notes.append(_("Resumed: {n} finished trials were taken from the journal.").format(n=len(self.trials)))
            try:
                spec = replace(self.spec, module=self.bench.restore(record["source"]))
                variant = Variant(spec, record["target"], record["options"], tuple(record["applied"]))
                return self.bench.open(self.bench.build(variant)), record
            except (WorkerError, NpuliftError, OSError, RuntimeError) as error:
                self.notes.append(_("The best program of the earlier run no longer works here ({error}); starting from the untuned one.").format(error=_first_line(error)))
        elif self.journal.resumed:
            self.trials = [_trial_from(t) for t in self.journal.trials()]
        if len(plain) == 1 or self.target.run_kind is not Kind.MEASURED:
            return next(iter(plain.values())), {}
        self.say(_("timing the runtimes as they come"), None)
        timers = {name: program.timer(self.inputs, self.settings.goal) for name, program in plain.items()}
        times = timing.interleaved(timers, 9, seed=self.settings.seed)
        medians = {name: statistics.median(t) for name, t in times.items()}
        first = min(medians, key=lambda n: medians[n]) if self.settings.goal != "size" else min(plain, key=lambda n: plain[n].built.bytes)
        slower = {n: m for n, m in medians.items() if n != first}
        if self.target.name != first and self.target.name in medians and "choose-runtime" not in {t.change for t in self.trials}:
            reason = _("{first} takes {a:.2f} ms, {others}: the search starts there.").format(
                first=first, a=medians[first] * 1e3, others=", ".join(f"{n} {m * 1e3:.2f} ms" for n, m in slower.items())
            )
            kind, device = Kind.MEASURED, "CPU"
            trial = Trial("choose-runtime", 0.1, "kept", reason, Measured(tuple(times[first]), kind, device), Measured(tuple(times[self.target.name]), kind, device))
            self._record("choose-runtime", trial, plain[first], 0.0)
        return plain[first], {}

    # --- the loop -----------------------------------------------------------------------------------------------------------

    def _proposals(self, incumbent: Running) -> list[Change]:
        variant = incumbent.built.variant
        changes = list(rewrites.proposals(self.seen, self.target))
        targets = ["openvino", "onnxruntime"] if is_host(self.target) else [self.target.name]
        for name in targets:
            changes += find_target(name).changes(self.seen, variant)
        first = {variant.target: 1.0}
        # Largest expected gain first; among equals what concerns the runtime that leads.
        changes.sort(key=lambda c: (-c.expected_gain, -first.get(c.key.rpartition("@")[2], 0.0), c.identity))
        unique: dict[str, Change] = {}
        for change in changes:
            unique.setdefault(change.identity, change)
        return list(unique.values())

    def _search(self, incumbent: Running) -> Running:
        done = {t.change for t in self.trials}
        changes = [c for c in self._proposals(incumbent) if c.identity not in done]
        left = self.settings.budget - self.journal.spent
        for number, change in enumerate(changes):
            begun = time.monotonic()
            if left <= 0:
                names = ", ".join(c.identity for c in changes[number:])
                self.notes.append(_("The budget of {budget:.0f} s was spent before these were tried: {names}.").format(budget=self.settings.budget, names=names))
                break
            self.say(_("trial {n} of {m}: {change} ({kept} kept so far)").format(
                n=number + 1, m=len(changes), change=change.identity, kept=sum(t.verdict == "kept" for t in self.trials)), number / len(changes))
            trial, winner = self._try(change, incumbent)
            spent = time.monotonic() - begun
            left -= spent
            if winner is not None:
                incumbent = winner
            self._record(change.identity, trial, winner, spent)
        return incumbent

    def _record(self, change: str, trial: Trial, winner: Running | None, seconds: float) -> None:
        self.trials.append(trial)
        record = None
        if winner is not None:
            variant = winner.built.variant
            record = {
                "target": variant.target, "options": {k: v for k, v in variant.options.items() if k != "calibration"}, "applied": list(variant.applied),
                "source": self.bench.relative(winner.built.source),
            }
        self.journal.finish(change, {**trial.as_json(), "_candidate": _pack(trial.candidate), "_incumbent": _pack(trial.incumbent)}, record, seconds)

    def _try(self, change: Change, incumbent: Running) -> tuple[Trial, Running | None]:
        """One trial: the verdict, and the new incumbent when it won."""
        def trial(verdict: str, reason: str, **more: Any) -> Trial:
            return Trial(change.identity, round(change.expected_gain, 4), verdict, reason, **more)

        try:
            with torch.no_grad():
                variant = change.apply(incumbent.built.variant)
            if variant is None:
                return trial("not-applicable", _("Nothing to change any more.")), None
            variant = replace(variant, applied=(*variant.applied, change.identity))
            refused = self._inexact(change, variant, incumbent)
            if refused:
                return trial("dropped", refused), None
            if change.name == "threads-and-streams":
                return self._numbers(change, variant, incumbent)
            built = self.bench.build(variant)
            if built.folder == incumbent.built.folder and variant.options == incumbent.built.variant.options:
                return trial("dropped", _("It compiles to the same program: the compiler does this by itself.")), None
            candidate = self.bench.open(built)
        except WorkerError as error:
            return trial("failed", _("The compiler failed: {error}").format(error=_first_line(error))), None
        except NpuliftError as error:
            return trial("failed", _first_line(error)), None
        except Exception as error:  # a rewrite or an export that does not fit this model must not end the run
            return trial("failed", _("It could not be applied: {error}").format(error=_first_line(error))), None
        try:
            check = verify.compare(candidate.run, self.spec, self.wanted, edges=False)
            refused = self._refused(check)
            if refused and variant.options.get("precision") == "int8":
                found = self._partly(variant, built)
                if found is not None:
                    candidate.close()
                    candidate, check, refused = *found, ""
            facts = {"error": check.error, "relative_error": check.relative, "metric": check.metric}
            if refused:
                candidate.close()
                return trial("dropped", refused, **facts), None
            return self._compete(trial, candidate, incumbent, facts)
        except (WorkerError, NpuliftError) as error:
            return trial("failed", _("It failed while running: {error}").format(error=_first_line(error))), None

    def _compete(self, trial: Callable[..., Trial], candidate: Running, incumbent: Running, facts: dict[str, Any]) -> tuple[Trial, Running | None]:
        goal = self.settings.goal
        if goal == "size":
            a, b = candidate.built.bytes, incumbent.built.bytes
            won = a < b * (1 - timing.WORTHWHILE)
            reason = _("{a:,} bytes against {b:,}.").format(a=a, b=b)
            return trial("kept" if won else "dropped", reason, **facts), candidate if won else None
        if self.target.run_kind is not Kind.MEASURED:
            return self._compete_by_score(trial, candidate, incumbent, facts)
        verdict, mine, theirs = timing.contest(candidate.timer(self.inputs, goal), incumbent.timer(self.inputs, goal), self.settings.seed)
        device = find_target(candidate.built.variant.target).device
        facts["candidate"], facts["incumbent"] = Measured(tuple(mine), Kind.MEASURED, device), Measured(tuple(theirs), Kind.MEASURED, device)
        figures = _("{a:.3f} ms against {b:.3f} ms, ratio {ratio:.3f} ({low:.3f} to {high:.3f}, {rounds} rounds)").format(
            a=facts["candidate"].median * 1e3, b=facts["incumbent"].median * 1e3, ratio=verdict.ratio, low=verdict.low, high=verdict.high, rounds=verdict.rounds
        )
        if verdict.clear == "faster":
            return trial("kept", _("Faster: {figures}.").format(figures=figures), **facts), candidate
        candidate.close()
        if verdict.clear == "slower":
            return trial("dropped", _("Slower: {figures}.").format(figures=figures), **facts), None
        return trial("dropped", _("No clear difference: {figures}.").format(figures=figures), **facts), None

    def _compete_by_score(self, trial: Callable[..., Trial], candidate: Running, incumbent: Running, facts: dict[str, Any]) -> tuple[Trial, Running | None]:
        mine, theirs = self.bench.score(candidate.built), self.bench.score(incumbent.built)
        if mine is None or theirs is None or mine.unit != theirs.unit:
            return trial("dropped", _("The target gives no figure to judge by."), **facts), None
        before, after = self.bench.placement(incumbent.built.variant), self.bench.placement(candidate.built.variant)
        moved = before is not None and after is not None and after.on_cpu < before.on_cpu
        worse = before is not None and after is not None and after.on_cpu > before.on_cpu
        won = (moved or mine.value < theirs.value * (1 - timing.WORTHWHILE)) and not worse
        figures = _("{a:.6g} {unit} against {b:.6g} ({kind})").format(a=mine.value, b=theirs.value, unit=mine.unit, kind=mine.kind)
        if before is not None and after is not None:
            figures += _(", {a} operators on the CPU against {b}").format(a=after.on_cpu, b=before.on_cpu)
        if mine.unit == "s":
            facts["candidate"], facts["incumbent"] = (Measured((s.value,), s.kind, self.target.device) for s in (mine, theirs))
        return trial("kept" if won else "dropped", (_("Better: {figures}.") if won else _("Not better: {figures}.")).format(figures=figures), **facts), candidate if won else None

    def _refused(self, check: Check) -> str:
        """Why a program is not accepted, '' when it is: by the metric where there is one (unless --max-error says more), else by its error."""
        if not check.finite:
            return _("It gives NaN, inf or another shape where eager gives numbers.")
        if check.metric is not None and self.wanted.metric is not None:
            if check.metric < self.wanted.metric - self.settings.metric_drop - 1e-12:
                return _("{name} falls from {a:.4f} to {b:.4f}; {drop:g} is allowed.").format(
                    name=self.spec.metric_name, a=self.wanted.metric, b=check.metric, drop=self.settings.metric_drop)
            if self.settings.max_error is None:
                return ""
        if check.relative > self._lossy():
            return _("Off by {error:.2g} of the largest value; {limit:.2g} is allowed (--max-error).").format(error=check.relative, limit=self._lossy())
        return ""

    def _inexact(self, change: Change, variant: Variant, incumbent: Running) -> str:
        """Why a change that should be exact is not, '' when it is: the changed module itself, run by PyTorch, against eager."""
        if not change.exact or variant.module is incumbent.built.variant.module:
            return ""

        def run(inputs: verify.Arrays) -> verify.Arrays:
            waiting = iter(inputs)
            args = [torch.from_numpy(next(waiting).copy()) if isinstance(v, torch.Tensor) else v for v in self.spec.inputs]
            with torch.inference_mode():
                result = variant.module(*args)
            return tuple(v.numpy() for v in torch.utils._pytree.tree_leaves(result) if isinstance(v, torch.Tensor))

        check = verify.compare(run, replace(self.spec, metric=None), self.wanted)
        limit = self.spec.tolerance.exact
        if not check.finite or check.relative > limit:
            return _("Off by {error:.2g} of the largest value; {limit:.2g} is allowed to a change that should be exact.").format(error=check.relative, limit=limit)
        if check.edge > limit:
            return _("Off by {error:.2g} of the largest value on generated inputs ({name}); {limit:.2g} is allowed.").format(
                error=check.edge, name=check.edge_name, limit=limit)
        return ""

    def _lossy(self) -> float:
        """The relative error allowed to a program. Where the chip's own arithmetic is coarser, as the untuned program shows, a tenth more than its; what the
        user asked for with --max-error stays the limit."""
        if self.settings.max_error is not None:
            return self.settings.max_error
        allowed = self.spec.tolerance.lossy
        return allowed if is_host(self.target) else max(allowed, 1.1 * self.errors.get(self.target.name, 0.0))

    def _partly(self, variant: Variant, built: Built) -> tuple[Running, Check] | None:
        """int8 with the operators that hurt left in float: each group alone first, then together, what helped most first."""
        count = int(built.facts.get("quantisable", 0))
        if count < 2:
            return None
        deadline = time.monotonic() + max(20.0, (self.settings.budget - self.journal.spent) / 3)

        def attempt(ignored: list[int]) -> tuple[Running, Check] | None:
            try:
                program = self.bench.open(self.bench.build(variant.with_options(ignored=sorted(ignored))))
                return program, verify.compare(program.run, self.spec, self.wanted, edges=False)
            except (WorkerError, NpuliftError):
                return None

        helped: list[tuple[float, list[int]]] = []
        for group in map(list, _split(range(count), min(8, count))):
            if time.monotonic() > deadline:
                break
            self.say(_("int8: leaving operators {first} to {last} of {count} in float").format(first=group[0] + 1, last=group[-1] + 1, count=count), None)
            found = attempt(group)
            if found is not None and not self._refused(found[1]):
                return found
            if found is not None:
                found[0].close()
                helped.append((found[1].relative, group))
        helped.sort(key=lambda h: h[0])
        ignored: list[int] = helped[0][1] if helped else []
        for _error, group in helped[1:]:
            ignored = [*ignored, *group]
            if time.monotonic() > deadline or len(ignored) > count // 2:
                break
            self.say(_("int8: leaving {n} of {count} operators in float").format(n=len(ignored), count=count), None)
            found = attempt(ignored)
            if found is not None and not self._refused(found[1]):
                return found
            if found is not None:
                found[0].close()
        return None

    def _numbers(self, change: Change, variant: Variant, incumbent: Running) -> tuple[Trial, Running | None]:
        """Threads and streams by Optuna; the best is then judged like any other candidate."""
        import os

        import optuna

        def trial(verdict: str, reason: str, **more: Any) -> Trial:
            return Trial(change.identity, round(change.expected_gain, 4), verdict, reason, **more)

        if variant.target != incumbent.built.variant.target:
            return trial("not-applicable", _("{target} is not the runtime that leads.").format(target=variant.target)), None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        cores = os.cpu_count() or 1
        space: dict[str, list[Any]] = {"threads": sorted({1, *(2**i for i in range(cores.bit_length()) if 2**i <= cores), cores})}
        if variant.target.startswith("openvino"):
            space |= {"streams": [1, *([2, cores] if cores > 2 else [2])], "hint": ["LATENCY", "THROUGHPUT"]}
        reference_timer = incumbent.timer(self.inputs, self.settings.goal)
        study = optuna.create_study(direction="minimize", sampler=optuna.samplers.TPESampler(seed=self.settings.seed, n_startup_trials=4))
        combinations = 1
        for values in space.values():
            combinations *= len(values)

        def objective(t: Any) -> float:
            options = {name: t.suggest_categorical(name, values) for name, values in space.items()}
            program = self.bench.open(replace(incumbent.built, variant=variant.with_options(**options)))
            try:
                timers = {"candidate": program.timer(self.inputs, self.settings.goal), "incumbent": reference_timer}
                times = timing.interleaved(timers, 5, seed=self.settings.seed + t.number)
                return statistics.median(a / b for a, b in zip(times["candidate"], times["incumbent"], strict=True))
            finally:
                program.close()

        try:
            study.optimize(objective, n_trials=min(10, combinations), timeout=max(5.0, (self.settings.budget - self.journal.spent) / 4), catch=(WorkerError,))
            options = study.best_params
        except ValueError:
            return trial("failed", _("No combination of threads and streams ran.")), None
        candidate = self.bench.open(replace(incumbent.built, variant=variant.with_options(**options)))
        chosen = ", ".join(f"{k}={v}" for k, v in options.items())
        check = verify.compare(candidate.run, self.spec, self.wanted, edges=False)
        result, winner = self._compete(trial, candidate, incumbent, {"error": check.error, "relative_error": check.relative, "metric": check.metric})
        return replace(result, reason=_("Best of {n} combinations: {chosen}. {reason}").format(n=len(study.trials), chosen=chosen, reason=result.reason)), winner

    # --- the end ------------------------------------------------------------------------------------------------------------

    def _finish(self, plain: dict[str, Running], failures: dict[str, str], best: Running, start: dict[str, Any]) -> Outcome:
        timers = {}
        goal = "latency" if self.settings.goal == "size" else self.settings.goal
        with _eager(self.spec, self.inputs) as eager:
            timers["eager"] = eager
            compiled = None
            if is_host(self.target):
                self.say(_("torch.compile, for comparison"), None)
                compiled, why = _torch_compile(self.spec, self.inputs)
                if compiled is not None:
                    timers["torch.compile"] = compiled
                else:
                    failures["torch.compile"] = why
                for name, program in plain.items():
                    timers[name] = program.timer(self.inputs, goal)
                if best not in plain.values():
                    timers["tuned"] = best.timer(self.inputs, goal)
            self.say(_("the final comparison: {n} contestants, {rounds} interleaved rounds").format(n=len(timers), rounds=FINAL_ROUNDS), None)
            times = timing.interleaved(timers, FINAL_ROUNDS, seed=self.settings.seed)
            for more in range(MORE_ROUNDS):
                if "tuned" not in times or all(timing.judge(times[n], times["tuned"]).clear == "slower" for n in plain):
                    break  # clear against every untuned program
                for name, values in timing.interleaved(timers, FINAL_ROUNDS, seed=self.settings.seed + 1 + more).items():
                    times[name] += values
        baseline = {n: Measured(tuple(t), Kind.MEASURED, "CPU") for n, t in times.items() if n != "tuned"}
        scores: dict[str, Score] = {}
        if is_host(self.target):
            tuned: Measured | None
            best, tuned = self._never_worse(plain, best, times)
        else:
            for name, program in (*plain.items(), ("tuned", best)):
                score = self.bench.score(program.built)
                if score is not None:
                    scores[name] = score
            tuned = Measured((scores["tuned"].value,), scores["tuned"].kind, self.target.device) if "tuned" in scores and scores["tuned"].unit == "s" else None
            for name, score in scores.items():
                if name != "tuned" and score.unit == "s":
                    baseline[name] = Measured((score.value,), score.kind, self.target.device)
        self.say(_("writing the bundle, and checking it from disk"), None)
        check = verify.compare(best.run, self.spec, self.wanted)
        family = self.target.name.partition(":")[0]
        before = plain.get(self.target.name) or next((p for n, p in plain.items() if n.startswith(family)), next(iter(plain.values())))
        variant = best.built.variant
        bundle.save(
            self.settings.out, best.built.folder, target=variant.target, options=variant.options,
            signature=bundle.signature_of(self.spec, self.wanted.result),
            more={"model": self.spec.name, "applied": list(variant.applied), "verified": {"max_abs_error": check.error, "relative_error": check.relative}},
        )
        from_disk = self._from_disk()
        placements: tuple[Placement | None, Placement | None] = self.bench.placement(before.built.variant), self.bench.placement(variant)
        self.findings += [f for f in (placements[0].findings if placements[0] else ()) if f not in self.findings]
        profiles = self._profile(before), self._profile(best)
        return Outcome(
            self.spec, self.settings.target, self.settings.goal, self.settings.out, self.seen, tuple(self.findings), tuple(self.trials), baseline, tuned, check,
            from_disk, self.wanted, before, best, placements, profiles, failures, tuple(self.notes), scores,
        )

    def _never_worse(self, plain: dict[str, Running], best: Running, times: dict[str, list[float]]) -> tuple[Running, Measured]:
        """The tuned program, unless the final comparison shows an untuned one to be clearly faster: then that one."""
        if "tuned" not in times:
            name = next(n for n, p in plain.items() if p is best)
            return best, Measured(tuple(times[name]), Kind.MEASURED, "CPU")
        for name, program in plain.items():
            if timing.judge(times[name], times["tuned"]).clear == "faster":
                self.notes.append(_("In the final comparison {name} as it comes was faster than what the search had found, so that is in the bundle.").format(name=name))
                best = program
                times["tuned"] = times[name]
        if "torch.compile" in times and timing.judge(times["torch.compile"], times["tuned"]).clear == "faster":
            best, times["tuned"] = self._take_torch_compile(best, times)
        return best, Measured(tuple(times["tuned"]), Kind.MEASURED, "CPU")

    def _take_torch_compile(self, best: Running, times: dict[str, list[float]]) -> tuple[Running, list[float]]:
        variant = replace(self.base, target="cpu", options={"compile": True}, applied=("choose-runtime",))
        program = self.bench.open(self.bench.build(variant))
        again = timing.interleaved({"cpu": program.timer(self.inputs, "latency"), "best": best.timer(self.inputs, "latency")}, 15)
        if timing.judge(again["cpu"], again["best"]).clear == "faster":
            self.notes.append(_("torch.compile was the fastest; the bundle holds the exported program and compiles it when it is loaded."))
            return program, times["torch.compile"]
        return best, times["tuned"]

    def _from_disk(self) -> Check:
        """The bundle, loaded in a fresh process, against eager."""
        from npulift.worker import Worker

        with Worker(time_limit=600) as worker:
            worker.call("npulift.tune_fresh:open_bundle", self.settings.out.resolve())
            return verify.compare(lambda inputs: worker.call("npulift.tune_fresh:run_bundle", inputs), self.spec, self.wanted, edges=False)

    def _profile(self, program: Running) -> Profile | None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "profile.parquet"
            try:
                return Profile.read(path) if program.profile(self.inputs, 10, path) else None
            except WorkerError as error:
                self.notes.append(_("No profile by operator: {error}").format(error=_first_line(error)))
                return None


@contextlib.contextmanager
def _eager(spec: ModelSpec, inputs: verify.Arrays) -> Iterator[timing.Timer]:
    yield _module_timer(spec.module, spec)


def _module_timer(module: Any, spec: ModelSpec) -> timing.Timer:
    def timer(calls: int) -> float:
        with torch.inference_mode():
            start = time.perf_counter()
            for _call in range(calls):
                module(*spec.inputs)
            return (time.perf_counter() - start) / calls

    return timer


def _torch_compile(spec: ModelSpec, inputs: verify.Arrays) -> tuple[timing.Timer | None, str]:
    """(a timer of torch.compile's module, '') or (None, why not)."""
    try:
        module = torch.compile(spec.module)
        timer = _module_timer(module, spec)
        timer(1)
    except Exception as error:  # a compiler of its own kind of trouble (no C++ compiler, a graph that it refuses)
        return None, _first_line(error)
    return timer, ""


def _split(items: range, parts: int) -> Iterator[range]:
    size, more = divmod(len(items), parts)
    start = 0
    for i in range(parts):
        end = start + size + (i < more)
        yield items[start:end]
        start = end


def _identity(spec: ModelSpec, seen: Capture, settings: Settings) -> str:
    from npulift.workbench import _digest

    assert seen.exported is not None
    facts = [_digest(seen.exported), settings.target, settings.goal, settings.max_error, settings.metric_drop, settings.seed, __version__, torch.__version__,
             [list(t.shape) for t in spec.tensors]]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _writable(work: Path) -> None:
    try:
        work.mkdir(parents=True, exist_ok=True)
        probe = work / ".probe"
        probe.write_bytes(b"0" * 65536)
        probe.unlink()
    except OSError as error:
        raise NpuliftError(_("{path} cannot be written: {reason}. Choose another place with --out.").format(path=work.parent, reason=error.strerror or error), exit_code=1) from error


def _cannot_export(spec: ModelSpec, settings: Settings, seen: Capture, findings: list[Finding]) -> Report:
    from npulift.report.document import Text

    lines = [_("torch.export cannot take {model} as it is: {reason}").format(model=spec.name, reason=seen.export_error.splitlines()[0][:300])]
    for spot in seen.data_dependent:
        lines.append(f"  {spot.location}  {spot.kind}  {spot.expression}")
    lines.append(_("Compilers for NPUs need one graph. `npulift rewrite` offers a form without the data-dependent spots; `npulift check` explains each."))
    return Report(
        "tune", _("{model} on {target}: not tuned").format(model=spec.name, target=settings.target), {"model": spec.origin or spec.name}, settings.target,
        ok=False, findings=tuple(findings), data={"baseline": {}, "tuned": None, "trials": [], "export_error": seen.export_error}, sections=(Text("\n".join(lines)),),
    )


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    kind = getattr(error, "kind", "") if isinstance(error, WorkerError) else ("" if isinstance(error, NpuliftError) else type(error).__name__)
    line = text[0][:300] if text else type(error).__name__
    return f"{kind}: {line}" if kind and not line.startswith(kind) else line


def _pack(measured: Measured | None) -> dict[str, Any] | None:
    return {"seconds": list(measured.seconds), "kind": measured.kind.value, "device": measured.device} if measured else None


def _unpack(packed: dict[str, Any] | None) -> Measured | None:
    return Measured(tuple(packed["seconds"]), Kind(packed["kind"]), packed["device"]) if packed else None


def _trial_from(record: dict[str, Any]) -> Trial:
    return Trial(
        record["change"], record["expected_gain"], record["verdict"], record["reason"], _unpack(record.get("_candidate")), _unpack(record.get("_incumbent")),
        record["max_abs_error"], record["relative_error"], record["metric"],
    )


__all__ = ["GOALS", "Settings", "target_classes", "tune"]
