"""`npulift.explain(exception)`: what an exception means, in plain words, with the fix."""

from __future__ import annotations

import os
import time
import traceback
from pathlib import Path

from npulift.doctor.diagnose import Diagnosis, diagnose_text
from npulift.messages import _

MOST_LOG = 2 * 1024 * 1024  # bytes of the newest plogs that are read along


def explain(error: BaseException | str, *, since: float | None = None) -> str:
    """The explanation of an exception (or of a text), '' when nothing is known about it.

    since: seconds since 1970; Ascend's own logs (plog) of this process that are newer are read along.
    """
    diagnosis = diagnosis_of(error, since=since)
    if not diagnosis.causes:
        return ""
    lines = []
    for cause in diagnosis.causes[:3]:
        sure = {"high": "", "medium": _(" (fairly sure)"), "low": _(" (a guess)")}[cause.confidence]
        lines.append(f"npulift: {cause.cause.strip()}{sure}")
        lines += [f"  {i}. {step}" for i, step in enumerate(cause.fix, 1)]
        if cause.more:
            lines.append("  " + _("More evidence: {where}").format(where=cause.more))
    return "\n".join(lines)


def diagnosis_of(error: BaseException | str, *, since: float | None = None) -> Diagnosis:
    """The diagnosis behind `explain`."""
    if isinstance(error, BaseException):
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        conf = os.environ.get("PYTORCH_NPU_ALLOC_CONF")
        text = (f"PYTORCH_NPU_ALLOC_CONF={conf}\n" if conf else "") + text
    else:
        text = error
    return diagnose_text(text + _plog(since), "<exception>")


def _plog(since: float | None) -> str:
    if since is None:
        return ""
    folder = Path(os.environ.get("ASCEND_PROCESS_LOG_PATH") or Path.home() / "ascend" / "log")
    mine = str(os.getpid())
    parts: list[str] = []
    try:
        files = sorted((f for f in folder.rglob(f"plog-{mine}_*.log") if f.stat().st_mtime >= since), key=lambda f: f.stat().st_mtime)
        for file in files[-3:]:
            with file.open("rb") as opened:
                opened.seek(max(0, file.stat().st_size - MOST_LOG))
                parts.append(opened.read(MOST_LOG).decode("utf-8", "replace"))
    except OSError:
        return ""
    return "\n" + "\n".join(parts)


def started() -> float:
    """Now, for `since`."""
    return time.time()
