"""ADV052 environment-settings: environment variables that cost time.

Settings for debugging that were left on, and buffers that were made too small.
Threshold: none; each of them is known to cost.
Saving: not estimated.
Change: unset them.
"""

from __future__ import annotations

from collections.abc import Iterator

from npulift.findings import Finding, Severity
from npulift.messages import N_, _
from npulift.profilers.view import View, found

CODE = "ADV052"
NAME = "environment-settings"

_KNOWN = (
    ("ASCEND_LAUNCH_BLOCKING", lambda v: v == "1", N_("makes every kernel launch wait for its end")),
    ("ASCEND_GLOBAL_LOG_LEVEL", lambda v: v in ("0", "1"), N_("writes debug or information logs for every call")),
    ("TASK_QUEUE_ENABLE", lambda v: v == "0", N_("turns the asynchronous task queue off, so the host does every launch itself")),
    ("ACLNN_CACHE_LIMIT", lambda v: v.isdigit() and int(v) < 10000, N_("keeps fewer kernel plans than the default, so they are made anew")),
    ("HCCL_ENTRY_LOG_ENABLE", lambda v: v == "1", N_("logs every collective")),
)


def find(view: View) -> Iterator[Finding]:
    """From profiler_metadata.json."""
    variables = view.meta.get("environment") or {}
    for name, bad, why in _KNOWN:
        value = str(variables.get(name, "")).strip()
        if value and bad(value):
            yield found(
                view, (CODE, NAME), Severity.WARNING, _("{name}={value} {why}.").format(name=name, value=value, why=_(why)),
                _("Unset {name} for production runs.").format(name=name), details={"variable": name, "value": value},
            )
