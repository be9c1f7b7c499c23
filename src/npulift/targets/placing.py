"""Ask a target where operators go, in a worker process, so that a vendor compiler that dies becomes a finding."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from npulift.capture import Capture
from npulift.files import save_program
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.targets.base import Placement, Target
from npulift.worker import RemoteError, Worker, WorkerError


def place(target: Target, capture: Capture, options: dict[str, Any] | None = None, *, time_limit: float = 600.0) -> tuple[Placement | None, list[Finding]]:
    """(placement, findings). Placement is None when the target does not say, cannot be asked here, or its compiler failed (then a finding says so)."""
    if capture.exported is None or capture.draft or capture.device == "meta" or type(target).placement is Target.placement:
        return None, []
    missing = target.missing()
    if missing:
        return None, [Finding("NPU101", "target-not-installed", Severity.WARNING, missing)]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "model.pt2"
        save_program(capture.exported, source)
        try:
            with Worker(time_limit=time_limit) as worker:
                placement = worker.call("npulift.targets.runner:placement", target.name, source, options or {})
        except WorkerError as error:
            return None, [compiler_failed(target, error)]
    return placement, list(placement.findings) if placement is not None else []


def compiler_failed(target: Target, error: WorkerError) -> Finding:
    """The finding that a vendor compiler that raised, died, hung or ran out of memory becomes."""
    lines = [line for line in error.log.splitlines() if line.strip()]
    last = f" ({error.kind})" if isinstance(error, RemoteError) else ""
    first_line = str(error).splitlines()[0][:500] if str(error) else type(error).__name__
    return Finding(
        "NPU102", "compiler-failed", Severity.ERROR,
        _("The compiler of {target} failed{kind}: {error}").format(target=target.name, kind=last, error=first_line),
        fix=_("See `npulift check` for operators that it cannot take; npulift doctor explains vendor errors."),
        details={"error": str(error)[:4000], "log": lines[-20:]},
    )
