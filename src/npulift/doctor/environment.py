"""Is this machine set up right? Needs Python alone; what may crash (imports, device work) happens in processes of its own."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.report.document import Report, Section, Table, Text


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at.

    name: kebab-case.   value: what is there, in a few words.   severity: None when it is right or merely a fact.
    """

    name: str
    value: str
    severity: Severity | None = None
    message: str = ""
    fix: str = ""
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Machine:
    """What checks may look at; tests give another root and another environment.

    root: '/' but for tests.   environ: environment variables.   probes: results of the child processes by name.
    """

    root: Path = Path("/")
    environ: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    probes: dict[str, dict[str, Any]] = field(default_factory=dict)
    smoke: bool = True

    def path(self, name: str) -> Path:
        """A path of the machine."""
        return self.root / name.lstrip("/")

    def run(self, *command: str, seconds: float = 15.0) -> tuple[int, str]:
        """(exit code, output) of a program; -1 when it is not there or does not end in time."""
        try:
            done = subprocess.run(list(command), capture_output=True, timeout=seconds, check=False, env=self.environ, stdin=subprocess.DEVNULL)
            return done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace")[:200_000]
        except (OSError, subprocess.TimeoutExpired):
            return -1, ""


def probe(code: str, environ: dict[str, str], seconds: float = 60.0) -> dict[str, Any]:
    """Run Python code in a process of its own; it prints one JSON object as its last line.

    Returns that object with 'ok'; on failure 'ok' is False and 'error' holds the end of its output ('' and 'seconds' when it hung).
    """
    with tempfile.TemporaryDirectory() as folder:  # an empty current folder: nothing there is imported by mistake
        try:
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=seconds, check=False, env=environ, cwd=folder, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return {"ok": False, "error": _("did not end within {n} s").format(n=int(seconds)), "code": None}
        except OSError as error:
            return {"ok": False, "error": str(error), "code": None}
    lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
    try:
        result = json.loads(lines[-1])
        if done.returncode == 0 and isinstance(result, dict):
            return {"ok": True, **result}
    except (IndexError, ValueError):
        pass
    text = (done.stdout + done.stderr).decode("utf-8", "replace")
    return {"ok": False, "error": text[-4000:], "code": done.returncode}


def checks(machine: Machine, progress: Callable[[str], None] | None = None) -> list[Check]:
    """Run every check of doctor/checks/; probes run side by side first."""
    from npulift.doctor import checks as folder

    modules = [importlib.import_module(f"{folder.__name__}.{info.name}") for info in sorted(pkgutil.iter_modules(folder.__path__), key=lambda m: m.name)]
    wanted: dict[str, str] = {}
    for module in modules:
        wanted.update(getattr(module, "PROBES", {}))
        if machine.smoke:
            wanted.update(getattr(module, "SMOKE", {}))
    from npulift.doctor.checks.packages import installed

    have = installed()
    jobs = {name: code for name, code in wanted.items() if any(p in have for p in name.partition(":")[0].split("|"))}
    if progress:
        progress(_("importing {names} in processes of their own").format(names=", ".join(sorted({j.partition(':')[0].split('|')[0] for j in jobs})) or "-"))
    with ThreadPoolExecutor(max_workers=max(2, min(4, os.cpu_count() or 2))) as pool:
        machine.probes = dict(zip(jobs, pool.map(lambda code: probe(code, machine.environ), jobs.values()), strict=True))
    found: list[Check] = []
    for module in modules:
        if not hasattr(module, "check"):
            continue
        try:
            found += list(module.check(machine))
        except Exception as error:  # a check must not take the others with it
            found.append(Check(module.__name__.rpartition(".")[2], "-", Severity.INFO, _("This check could not be made: {error}.").format(error=repr(error)[:200])))
    return found


def environment_report(*, smoke: bool = True, progress: Callable[[str], None] | None = None, machine: Machine | None = None) -> Report:
    """The state of this machine: what is there, what is wrong, how to mend it."""
    machine = machine or Machine(smoke=smoke)
    done = checks(machine, progress)
    rows = tuple((c.name, _state(c), c.value) for c in done)
    findings = tuple(_findings(done))
    worst = max((f.severity.rank for f in findings), default=-1)
    verdict = (
        _("Something here is broken: see the errors below.") if worst == 2 else
        _("Nothing is broken; some settings cost time or will trouble you.") if worst == 1 else
        _("All that was looked at is right.")
    )
    sections: list[Section] = [Text(verdict), Table(_("Looked at"), (_("what"), _("state"), _("found")), rows, top=200)]
    return Report(
        "doctor", _("This machine"), {"input": None}, findings=findings,
        data={"causes": [_as_cause(c) for c in done if c.severity is not None], "checks": [_as_json(c) for c in done], "verdict": verdict},
        sections=tuple(sections))


def _state(check: Check) -> str:
    if check.severity is None:
        return _("ok")
    return {Severity.ERROR: _("error"), Severity.WARNING: _("warning"), Severity.INFO: _("note")}[check.severity]


def _findings(done: list[Check]) -> Iterator[Finding]:
    for check in done:
        if check.severity is not None:
            yield Finding("DOCTOR", check.name, check.severity, check.message, fix=check.fix, details=check.details)


def _as_json(check: Check) -> dict[str, Any]:
    return {"name": check.name, "state": check.severity.value if check.severity else "ok", "value": check.value, "message": check.message, "fix": check.fix, "details": check.details}


def _as_cause(check: Check) -> dict[str, Any]:
    assert check.severity is not None
    return {"id": check.name, "cause": check.message, "confidence": "high", "severity": check.severity.value, "evidence": [check.value], "fix": check.fix}
