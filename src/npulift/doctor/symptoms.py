"""An expert's way from a symptom to its cause: step by step, running the checks itself, stopping at the first cause that is confirmed.

Each step is a command of npulift run in a process of its own, so that a compiler that crashes ends its step and not the walk.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npulift.errors import NpuliftError
from npulift.findings import Finding, Location, Severity
from npulift.messages import N_, _
from npulift.report.document import Report, Section, Table, Text

SECONDS = 600.0  # a step that takes longer is given up

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a walk.

    asks: the question.   verb: command of npulift, or 'environment'.   options: further arguments.   codes: prefixes of finding codes (or names of
    environment checks) that confirm the cause.   script: whether it takes a SCRIPT; model: whether it takes a MODEL.   needs: what it waits for
    when it cannot be made here, '' otherwise.
    """

    asks: str
    verb: str
    codes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    script: bool = False
    model: bool = True
    needs: str = ""


_HARDWARE = N_("waits for the hardware: run it there again")
TREES: dict[str, tuple[Step, ...]] = {
    "slow": (
        Step(N_("Is the machine set so that everything is slow?"), "environment", ("launch-blocking", "log-level"), script=True),
        Step(N_("Do operators fall back to the CPU?"), "check", ("NPU1",)),
        Step(N_("Are there waits for the host or shapes that change, so that it recompiles?"), "check", ("NPU2",)),
        Step(N_("Is time spent on layout changes?"), "check", ("NPU4",)),
        Step(N_("Are there operators that could be one?"), "check", ("NPU5", "NPU6", "NPU7")),
        Step(N_("Does the script fall back or wait on a virtual Ascend?"), "simulate", ("NPU", "ADV"), script=True, model=False),
        Step(N_("Where does the measured time go?"), "profile", ("ADV",), script=True, needs=_HARDWARE),
    ),
    "wrong": (
        Step(N_("Are there places that are known to lose precision or to differ?"), "check", ("NPU3",)),
        Step(N_("Where do the numbers first go wrong, layer by layer?"), "compare", ("first_bad",)),
        Step(N_("Does the device itself compute right?"), "environment", ("smoke-",), script=True),
        Step(N_("Does it differ on the device only?"), "compare", ("first_bad",), needs=_HARDWARE),
    ),
    "oom": (
        Step(N_("Does another process hold the memory?"), "environment", ("npu-processes", "allocator-options"), script=True),
        Step(N_("How much does the script need, and where?"), "simulate", ("NPU", "ADV", "peak"), script=True, model=False),
        Step(N_("Are there operators that make large copies?"), "check", ("NPU4", "NPU3")),
        Step(N_("Is it fragmentation?"), "profile", ("ADV",), script=True, needs=N_("give the out-of-memory message to npulift doctor LOG: its figures tell fragmentation from another process from too large")),
    ),
    "nan": (
        Step(N_("Are there masks, exponentials or sums that overflow in 16 bits?"), "check", ("NPU3",)),
        Step(N_("Which layer is not finite first in float16?"), "compare", ("first_bad",), ("--precision", "float16")),
        Step(N_("Is overflow hidden by the saturation mode?"), "environment", ("saturation-mode",), script=True),
        Step(N_("Which layer is not finite first while it trains?"), "guard", ("first_bad",), script=True, needs=N_("forward hooks with torch.isfinite around the training loop")),
    ),
    "scaling": (
        Step(N_("Are network, ports and time limits set right?"), "environment", ("hccl-", "gloo-", "rank-table", "numa-binding"), script=True),
        Step(N_("How many bytes do the collectives move, in which buckets?"), "simulate", ("ADV", "NPU"), script=True, model=False),
        Step(N_("Does one rank wait for another?"), "advise", ("ADV",), script=True, needs=N_("waits for profiles of all ranks: npulift advise FOLDER")),
    ),
    "init": (
        Step(N_("Is the installation right, and does a small operation work on each device?"), "environment", ("",), script=True),
        Step(N_("Does the target compile the model at all?"), "check", ("NPU7", "NPU1")),
    ),
}


def walk(symptom: str, subject: str, target: str, progress: Callable[[str], None] | None = None) -> Report:
    """Walk the tree of a symptom for a MODEL (file.py:factory, .pt2) or a SCRIPT (file.py). Raises NpuliftError when there is no such file."""
    is_script = subject.endswith(".py")
    file = subject if is_script else subject.rpartition(":")[0] or subject
    if file.endswith((".py", ".pt2")) and not Path(file).is_file():
        raise NpuliftError(_("There is no {path}. --symptom wants a MODEL (file.py:factory or .pt2) or a SCRIPT.").format(path=file))
    rows: list[tuple[str, str, str]] = []
    steps: list[dict[str, Any]] = []
    found: list[Finding] = []
    done: dict[tuple[str, ...], Result] = {}
    for step in TREES[symptom]:
        state, evidence, confirmed = _take(step, subject, target, is_script, done, progress)
        rows.append((_(step.asks), state, evidence))
        steps.append({"step": step.asks, "command": step.verb, "state": state, "evidence": evidence, "confirmed": bool(confirmed)})
        if confirmed:
            found = confirmed
            break
    causes = [{"id": f.name, "cause": f.message, "confidence": "high", "severity": f.severity.value, "evidence": [str(f.location or "")], "fix": f.fix} for f in found]
    text = (
        _("Confirmed at this step: {cause}").format(cause=found[0].message) if found else
        _("No step confirmed a cause; those that wait say for what.")
    )
    sections: list[Section] = [Text(text), Table(_("Steps"), (_("question"), _("state"), _("evidence")), tuple(rows), top=40)]
    return Report("doctor", _("Symptom: {symptom}").format(symptom=symptom), {"input": subject, "symptom": symptom}, target=target,
                  findings=tuple(found), data={"causes": causes, "steps": steps, "verdict": text}, sections=tuple(sections))


def _take(step: Step, subject: str, target: str, is_script: bool, done: dict[tuple[str, ...], Result], progress: Callable[[str], None] | None) -> tuple[str, str, list[Finding]]:
    if (is_script and not step.script) or (not is_script and not step.model):
        return _("left out"), _("takes a MODEL (file.py:factory)") if is_script else _("takes a SCRIPT"), []
    if step.needs:
        return _("waits"), _(step.needs), []
    if step.verb != "environment" and importlib.util.find_spec(f"npulift.commands.{step.verb}") is None:
        return _("waits"), _("npulift {verb} is not part of this installation").format(verb=step.verb), []
    if progress:
        progress(_(step.asks))
    chosen = target if step.verb != "simulate" or target.startswith("ascend") else "ascend-910b2"
    smoke = any(code in ("", "smoke-") for code in step.codes)
    command = (("doctor",) if smoke else ("doctor", "--no-smoke")) if step.verb == "environment" else (step.verb, subject, "--target", chosen, *step.options)
    if command not in done:
        done[command] = _run(command)
    result = done[command]
    if "error" in result:
        return _("could not be made"), str(result["error"])[:300], []
    return _judge(step, result)


def _run(command: tuple[str, ...]) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        environ = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")}
        try:
            ended = subprocess.run([sys.executable, "-m", "npulift", *command, "--json", str(out), "--quiet"], capture_output=True, timeout=SECONDS, check=False, env=environ, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return {"error": _("did not end within {n} s").format(n=int(SECONDS))}
        if not out.exists():
            text = (ended.stderr or ended.stdout).decode("utf-8", "replace").strip().splitlines()
            return {"error": text[-1][:300] if text else _("exit code {code}").format(code=ended.returncode)}
        try:
            result = json.loads(out.read_text(encoding="utf-8"))
        except ValueError as error:
            return {"error": str(error)}
        return result if isinstance(result, dict) else {"error": "?"}


def _judge(step: Step, result: Result) -> tuple[str, str, list[Finding]]:
    if "first_bad" in step.codes:
        bad = result.get("first_bad")
        if bad:
            place = bad.get("module") or bad.get("operator") or "?"
            location = Location(str(bad["file"]), int(bad.get("line") or 0)) if bad.get("file") else None
            return _("confirmed"), str(place), [Finding("DOCTOR", "first-bad-layer", Severity.ERROR, _("The numbers first go wrong in {place}: {reason}").format(place=place, reason=bad.get("reason") or "?"), location=location, fix=_("Keep that layer in float32, or see what `npulift compare` says about it."))]
        return _("not it"), _("no layer goes wrong"), []
    hits = []
    for found in result.get("findings") or []:
        name = str(found.get("name", "")) if step.verb == "environment" else str(found.get("code", ""))
        noted = step.verb == "environment" and found.get("severity") == "info" and name in step.codes
        if noted or (found.get("severity") in ("warning", "error") and any(name.startswith(code) for code in step.codes)):
            hits.append(found)
    peak = result.get("peak_memory_bytes")
    seen = _("peak {gib:.1f} GiB").format(gib=peak / 2**30) if isinstance(peak, (int, float)) and peak else ""
    if not hits:
        return _("not it"), seen or _("nothing of this kind found"), []
    findings = [
        Finding(str(h.get("code") or "DOCTOR"), str(h.get("name") or "?"), Severity(h["severity"]), str(h.get("message") or ""),
                location=Location(str(h["file"]), int(h.get("line") or 0)) if h.get("file") else None, module=str(h.get("module") or ""), fix=str(h.get("fix") or ""))
        for h in hits[:10]
    ]
    findings.sort(key=lambda f: -f.severity.rank)
    return _("confirmed"), ", ".join(f.name for f in findings[:4]) + (f"; {seen}" if seen else ""), findings
