"""ADV104 unreadable-files: some files could not be read.

They were left out; what they would have told is missing here.
Threshold: none.
Saving: none.
Change: see the reason of each.
"""

from __future__ import annotations

from collections.abc import Iterator

from npulift.findings import Finding, Severity
from npulift.messages import _, ngettext
from npulift.profilers.view import View, found

CODE = "ADV104"
NAME = "unreadable-files"


def find(view: View) -> Iterator[Finding]:
    """Files that look like a profiler's and were not read."""
    bad = [(p, r) for p, r in view.evidence.skipped if not p.lower().endswith((".log", ".txt"))]
    if not bad:
        return
    yield found(
        view, (CODE, NAME), Severity.INFO,
        ngettext("{n} file was left out: {what}.", "{n} files were left out: {what}.", len(bad)).format(n=len(bad), what="; ".join(f"{p.rpartition('/')[2]} ({r.rstrip('.')})" for p, r in bad[:5])),
        _("If one of them is a profile, say which tool wrote it; npulift advise --help lists what is read."), details={"files": [{"file": p, "reason": r} for p, r in bad[:100]]},
    )
