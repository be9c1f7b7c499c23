"""ADV003 just-in-time-compile: the first step compiles operators.

On chips whose default is just-in-time compilation (Atlas training 910A, Atlas inference 310P), each new operator and shape is compiled when it is
first met, for a second or more each; files pile up under kernel_meta. On Atlas A2 and later (910B and up) the default is off and prebuilt kernels are used.
Threshold: the first step takes over 5 times the median of the later ones and 1 s more (warm-up alone gives 2 to 3 times), or compile calls take over 20 % of the
host's time in api_statistic.
Saving: the first step less a later one, once a process.
Change: torch.npu.set_compile_mode(jit_compile=False) at the start; warm up before timing; keep the compile cache between runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _, ngettext
from npulift.profilers.step_times import step_times
from npulift.profilers.view import View, found, percent

CODE = "ADV003"
NAME = "just-in-time-compile"

_JIT_BY_DEFAULT = re.compile(r"(?i)310p|910a\b|910pro|910prem|910$|ascend910$|310$")
_COMPILE = r"(?i)aclopCompile|CompileAndExecute|aclopCompileAndExecute|OpCompile|BuildOp|jit.?compile"


def find(view: View) -> Iterator[Finding]:
    """From step times, and from the compile calls that the host made."""
    api = view.table("api").filter(pl.col("name").str.contains(_COMPILE))
    steps = [s for s in step_times(view.table("step_times")) if s.ratio >= 5 and s.seconds[0] - s.later >= 1.0 and len(s.seconds) >= 3]
    chip = str(view.evidence.overrides.get("chip") or "")
    for run in steps:
        name = chip or run.chip
        stops = run.grows is False
        first, later = run.seconds[0], run.later
        saved = first - later
        if run.grows:
            continue  # files keep growing: recompilation, which has its own rule
        message = _("The first step takes {first} s, about {ratio}x the median of the later ones ({later} s): operators are compiled just in time, once.").format(
            first=f"{first:g}", ratio=f"{run.ratio:.0f}", later=f"{later:g}")
        if stops:
            message += " " + _("The number of compiled files ({n}) does not grow after that.").format(n=next(f for f in run.files if f is not None))
        if name:
            message += " " + (_("On {chip} jit_compile is True by default.").format(chip=name) if _JIT_BY_DEFAULT.search(name) else
                              _("On {chip} jit_compile is False by default, so something turned it on, or operators without a prebuilt kernel are in use.").format(chip=name))
        yield found(
            view, (CODE, NAME), Severity.WARNING, message, _fix(name), share=saved / sum(run.seconds),
            details={"first_s": first, "median_later_s": later, "ratio": round(run.ratio, 1), "chip": name or None, "compiled_files": [f for f in run.files if f is not None],
                     "one_time": True, "saving_s": round(saved, 3), "rank": run.rank, "jit_compile_default": bool(_JIT_BY_DEFAULT.search(name)) if name else None},
        )
    total = float(view.table("api")["total_us"].sum() or 0)
    spent = float(api["total_us"].sum() or 0)
    if total and spent / total >= 0.2 and not steps:
        count = int(api["count"].sum() or 0)
        yield found(
            view, (CODE, NAME), Severity.WARNING,
            ngettext("The host spends {seconds} s ({share} % of its calls' time) in {n} just-in-time compilation of an operator ({name}).",
                     "The host spends {seconds} s ({share} % of its calls' time) in {n} just-in-time compilations of operators ({name}).", count).format(
                seconds=f"{spent / 1e6:.2f}", share=percent(spent / total), n=count, name=api["name"][0]),
            _fix(chip), share=spent / total,
            details={"compile_us": round(spent, 1), "calls": count, "longest_us": api["max_us"].max(), "chip": chip or None},
        )


def _fix(chip: str) -> str:
    text = _("Call torch.npu.set_compile_mode(jit_compile=False) at the start of the program, so that prebuilt kernels are used, and warm up with each shape before timing.")
    if chip and _JIT_BY_DEFAULT.search(chip):
        return text + " " + _("It is neither the memory nor the data: only the first use of each operator and shape pays.")
    return text
