"""Two runs, launch by launch: what a change adds and removes."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from npulift.ascend.profiling import profile
from npulift.ascend.simulation import simulate
from npulift.errors import NpuliftError
from npulift.messages import _
from npulift.profile import Profile
from npulift.report.document import Facts, Report, Table

_MOST = 20_000  # launches that are aligned one by one; beyond that the counts alone are compared


def compare(before: str, after: str, *, target: str, say: Callable[[str], None] = lambda _text: None, **more: Any) -> Report:
    """Compare two runs: scripts or models are simulated, saved profiles (.parquet) are read."""
    a, b = (_profile(w, target, say, more) for w in (before, after))
    return report(a, b, before, after, target)


def _profile(what: str, target: str, say: Callable[[str], None], more: dict[str, Any]) -> Profile:
    if Path(what).suffix == ".parquet":
        return Profile.read(what)
    done = simulate(what, target, say=say, **more)
    if done.status not in ("finished", "exit"):
        raise NpuliftError(_("{what} stopped: {error}").format(what=what, error=done.error.get("message") or done.exit_code), exit_code=1)
    return profile(done)


def report(a: Profile, b: Profile, before: str, after: str, target: str) -> Report:
    """The report of a comparison."""
    first, second = _launches(a), _launches(b)
    counts = Counter(k[0] for k in first), Counter(k[0] for k in second)
    kinds = sorted({*counts[0], *counts[1]}, key=lambda k: -abs(counts[1][k] - counts[0][k]))
    changes = _aligned(first, second)
    rows = tuple((k, counts[0][k], counts[1][k], f"{counts[1][k] - counts[0][k]:+d}") for k in kinds)
    data = {
        "before": {"what": before, "launches": len(first)}, "after": {"what": after, "launches": len(second)},
        "kernels": [{"type": k, "before": counts[0][k], "after": counts[1][k]} for k in kinds], "changes": changes,
        "identical": not changes and first == second,
    }
    table = tuple((c["change"], c["type"], c["shapes"], f"{c['file']}:{c['line']}" if c["file"] else "", c["count"]) for c in changes)
    sections = (
        Facts("", ((_("before"), _("{what}: {n} launches").format(what=before, n=len(first))), (_("after"), _("{what}: {n} launches").format(what=after, n=len(second))))),
        Table(_("Launches by function"), (_("function"), _("before"), _("after"), _("difference")), rows),
        Table(_("Added and removed"), (_("change"), _("function"), _("shapes"), _("line"), _("launches")), table),
    )
    return Report("simulate", _("{before} against {after}").format(before=before, after=after), {"input": f"{before} {after}"}, target, data=data, sections=sections)


def _launches(p: Profile) -> list[tuple[str, str, str, str | None, int | None]]:
    kernels = p.events.filter(p.events["category"] == "kernel")
    return list(zip(*(kernels[c].to_list() for c in ("name", "input_shapes", "input_dtypes", "file", "line")), strict=True))


def _aligned(first: list[Any], second: list[Any]) -> list[dict[str, Any]]:
    """[{change: 'added' | 'removed', type, shapes, dtypes, file, line, count}], equal ones together."""
    changed: Counter[Any] = Counter()
    if max(len(first), len(second)) <= _MOST:
        matcher = difflib.SequenceMatcher(None, [k[:3] for k in first], [k[:3] for k in second], autojunk=len(first) > 4000)
        for tag, i1, i2, j1, j2 in matcher.get_opcodes():
            if tag != "equal":
                changed.update(("removed", *k) for k in first[i1:i2])
                changed.update(("added", *k) for k in second[j1:j2])
    else:
        before, after = Counter(k[:3] for k in first), Counter(k[:3] for k in second)
        changed.update({("removed", *k, None, None): n for k, n in (before - after).items()})
        changed.update({("added", *k, None, None): n for k, n in (after - before).items()})
    return [
        {"change": c, "type": name, "shapes": shapes, "dtypes": dtypes, "file": file, "line": line, "count": n}
        for (c, name, shapes, dtypes, file, line), n in changed.most_common()
    ]
