"""ADV102 heavy-profiling: the profiler collects too much.

Call stacks, module hierarchies, memory and shapes of every operator slow the host down by up to 3 times and make files of gigabytes that no viewer opens. Timings taken so are inflated.
Threshold: over 10 active steps, repeat=0 (for ever), call stacks, modules, Level2, data simplification off, a garbage collection threshold of 0 or L2 cache with them: a warning for over 20 steps
or for two together.
Saving: of the profile's size and of the distortion; not of the step.
Change: schedule(wait=1, warmup=1, active=2, repeat=1), Level1 only when needed, stacks in a run of their own, export type Db.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from npulift.findings import Finding, Severity
from npulift.messages import N_, _
from npulift.profilers.view import View, found

CODE = "ADV102"
NAME = "heavy-profiling"


def find(view: View) -> Iterator[Finding]:
    """By setting."""
    seen = set()
    for config in view.evidence.configs:
        problems = list(_problems(config))
        key = tuple(k for k, _t in problems)
        schedule: dict[str, Any] = config["schedule"] if isinstance(config.get("schedule"), dict) else {}
        active = _number(schedule.get("active"))
        if not problems or key in seen or (len(problems) < 2 and (active is None or active <= 20)):
            continue
        seen.add(key)
        stacks = any(k in ("with_stack", "with_modules") for k in key)
        message = _("The profiler collects too much: {problems}.").format(problems=", ".join(t for _k, t in problems))
        if stacks:
            message += " " + _("Timings taken with stacks on are inflated: the host runs up to 3 times slower, so free time and host times are not the program's own.")
        yield found(
            view, (CODE, NAME), Severity.WARNING, message,
            _("A lean configuration: schedule(wait=1, warmup=1, active=2, repeat=1, skip_first=1), with_stack=False, with_modules=False, with_flops=False, profile_memory=False, record_shapes=True, "
              "profiler_level=Level1 (Level0 for a first look), aic_metrics=AiCMetricsNone unless a kernel is studied, l2_cache=False, data_simplification=True, gc_detect_threshold=None, export_type=Db. "
              "Take stacks or memory in a second run of 1 or 2 steps."),
            details={"problems": [k for k, _t in problems], "schedule": schedule or None, "inflated": stacks,
                     "lean": {"schedule": {"wait": 1, "warmup": 1, "active": 2, "repeat": 1, "skip_first": 1}, "with_stack": False, "with_modules": False, "with_flops": False, "profile_memory": False,
                              "record_shapes": True, "profiler_level": "Level1", "l2_cache": False, "data_simplification": True, "gc_detect_threshold": None, "export_type": ["db"]}},
        )


def _problems(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    schedule: dict[str, Any] = config["schedule"] if isinstance(config.get("schedule"), dict) else {}
    active, repeat, warmup = (_number(schedule.get(k)) for k in ("active", "repeat", "warmup"))
    if active is not None and active > 10:
        yield "active", _("active={n} steps").format(n=active)
    if repeat == 0 and active:
        yield "repeat", _("repeat=0 (again and again until the end)")
    if warmup == 0 and active:
        yield "warmup", _("warmup=0 (the profiler's own start is recorded)")
    for key, text in (("with_stack", N_("with_stack (call stacks)")), ("with_modules", N_("with_modules (module hierarchy)")), ("with_flops", N_("with_flops")), ("profile_memory", N_("profile_memory")),
                      ("l2_cache", N_("l2_cache")), ("msprof_tx", N_("msprof_tx")), ("record_op_args", N_("record_op_args"))):
        if config.get(key) is True and (key not in ("profile_memory",) or config.get("with_stack") is True):
            yield key, _(text)
    if str(config.get("profiler_level", "")).lower().endswith("level2"):
        yield "profiler_level", _("Level2")
    if config.get("data_simplification") is False:
        yield "data_simplification", _("data_simplification off (raw files are kept)")
    threshold = config.get("gc_detect_threshold")
    if threshold is not None and _number(threshold) == 0:
        yield "gc_detect_threshold", _("gc_detect_threshold=0 (every garbage collection is recorded)")


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else int(value) if isinstance(value, str) and value.lstrip("-").isdigit() else None
