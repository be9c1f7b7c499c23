"""Ranks compared: who came late, who stopped early, who failed first."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from npulift.doctor.diagnose import Found
from npulift.doctor.records import Cause, Line
from npulift.findings import Severity
from npulift.messages import _

_DIGITS = re.compile(r"\d+(?:\.\d+)?")
_PREFIX = re.compile(r"^[\s(]*(?:\[[^\]]{0,60}\]|\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d\S*|INFO|WARNING|ERROR|\(\w+ [^)]{0,40}\)|[:|,-])\s*")
_ITERATION = re.compile(r"\b(?:iteration|iter|step|batch)\b[ _=:#]{1,3}(\d{1,9})|\b(\d{1,9}) (?:iterations|iters|steps|batches)\b", re.IGNORECASE)
_EXCEPTION = re.compile(r"(?:^|\]:?\s|\)\s|\s)(?:[\w.]{1,80}\.)?[A-Z]\w{2,60}(?:Error|Exception): \S")
_FINISHED = re.compile(r"\b(finished|done|complete[d]?|ended|exhausted|StopIteration)\b", re.IGNORECASE)
_CONNECT = ("hccl-connect-timeout", "hccl-transport-init", "hccl-ranktable-detect")
_EXECUTE = ("hccl-notify-timeout", "stream-sync-timeout", "task-timeout", "internal-task-timeout", "c10d-watchdog-timeout")
_CONNECT_LIMIT = 120  # s, HCCL_CONNECT_TIMEOUT's default
_EXECUTE_LIMIT = 1800  # s, HCCL_EXEC_TIMEOUT's default


class Ranks:
    """Follows what each rank says and when."""

    literals = ("[rank", "[Rank", "RankID:", "Worker_TP", "rank=", "rank ", "Rank ", "iteration", "step", "[1,", "loaded", "allreduce", "Error: ", "Exception: ")
    limit = 200_000

    def __init__(self) -> None:
        self.milestones: dict[str, dict[int, Line]] = {}
        self.iterations: dict[int, tuple[int, Line, bool]] = {}
        self.finished: dict[int, tuple[int, Line]] = {}
        self.last: dict[int, Line] = {}
        self.exceptions: dict[int | str, Line] = {}

    def line(self, line: Line) -> None:
        """Take one line of a known rank."""
        if _EXCEPTION.search(line.text) and len(self.exceptions) < 1000:
            self.exceptions.setdefault(line.rank if line.rank is not None else line.file, line)
        if line.rank is None or len(self.last) > 100_000:
            return
        self.last[line.rank] = line
        text = line.text
        if line.time is not None and (len(self.milestones) < 4000):
            key = _key(text)
            if len(key) > 8 and "error" not in key and not re.search(r"E[A-Z]\d{4}", text):
                self.milestones.setdefault(key, {}).setdefault(line.rank, line)
        found = _ITERATION.search(text)
        if found:
            number = int(found.group(1) or found.group(2))
            if _FINISHED.search(text):
                self.finished[line.rank] = (number, line)
            known = self.iterations.get(line.rank)
            if known is None or number >= known[0]:
                self.iterations[line.rank] = (number, line, bool(_FINISHED.search(text)))

    def causes(self, found: Found) -> Iterator[Cause]:
        """Draw what a timeout means when the ranks are known."""
        waits = [i for i in (*_CONNECT, *_EXECUTE) if found.has(i)]
        if not waits:
            return
        uneven = self._uneven(found, waits)
        if uneven is not None:
            yield uneven
            return
        late = self._late(found, waits)
        if late is not None:
            yield late
            return
        other = self._raised(found, waits)
        if other is not None:
            yield other
            return
        victims = {r for i in waits for r in found.matches[i].ranks}
        silent = sorted(set(self.last) - victims)
        if victims and silent and len(self.last) > 1:
            found.linked.setdefault("rank-silent", set())
            quiet = silent[0]
            quietest = min((self.last[r] for r in silent if self.last[r].time is not None), key=lambda line: line.time or 0.0, default=self.last[quiet])
            if not any(m.signature.severity is Severity.ERROR and i not in waits and not m.signature.wrapper for i, m in found.matches.items()):
                for i in waits:
                    found.linked.setdefault(i, set()).add("rank-without-timeout")
                yield Cause(
                    "rank-without-timeout", Severity.ERROR, "medium",
                    _("The ranks that report the timeout only waited ({waiting}). Rank {rank} reports none, and the last that is seen of it is at {place}: look there first.").format(
                        waiting=", ".join(map(str, sorted(victims)[:16])), rank=quietest.rank, place=quietest.place),
                    (
                        _("Read the log of rank {rank} from its last line on: it stopped, hangs on the host (data loading, a lock, a slow file system), or took another branch and skipped the collective.").format(rank=quietest.rank),
                        _("`py-spy dump --pid` on that process shows where it stands."),
                    ),
                    (quietest, *found.matches[waits[0]].evidence[:2]), more=_("Logs (and plogs) of all ranks: `npulift doctor` takes them together."),
                    source="hiyouga/LlamaFactory#5071; hicann EI0002, EI0006", details={"rank": quietest.rank, "waiting": sorted(victims)})

    def _uneven(self, found: Found, waits: list[str]) -> Cause | None:
        if len(self.iterations) < 2:
            return None
        furthest = max(self.iterations.items(), key=lambda kv: kv[1][0])
        shortest = min(self.iterations.items(), key=lambda kv: (kv[1][0], not kv[1][2]))
        ended = {r: n for r, (n, _l) in self.finished.items()}
        apart = furthest[1][0] - shortest[1][0]
        if (apart == 0 or (apart > 1 and not ended)) and len(set(ended.values())) < 2:
            return None
        if ended:
            rank, count = min(ended.items(), key=lambda kv: kv[1])
            line = self.finished[rank][1]
        else:
            rank, count, line = shortest[0], shortest[1][0], shortest[1][1]
        other, (further, other_line, _done) = furthest
        if further <= count:
            return None
        for i in waits:
            found.linked.setdefault(i, set()).add("uneven-iterations")
        limit = found.facts.value("HCCL_EXEC_TIMEOUT")
        said = _(" HCCL_EXEC_TIMEOUT={limit} does not change the limit of the stream wait, and no limit is long enough for a partner that never comes.").format(limit=limit) if limit else ""
        return Cause(
            "uneven-iterations", Severity.ERROR, "high" if ended else "medium",
            _("Uneven iteration counts: rank {a} finished with {n} iterations while rank {b} is in iteration {m}. Rank {b} waits in a collective that rank {a} never enters, "
              "which is a collective hang and ends in the timeout.").format(a=rank, n=count, b=other, m=further) + said,
            (
                _("Give all ranks the same number of batches: DataLoader(drop_last=True) with a DistributedSampler(drop_last=True) (check len(loader) on every rank)."),
                _("Or let ranks end early on purpose: `with torch.distributed.algorithms.join.Join([model]):` around the loop."),
                _("Datasets that stream or filter: agree on the number of steps by an all_reduce(min) before the epoch."),
                _("Only then think of longer timeouts; they only delay this."),
            ),
            (line, other_line, *found.matches[waits[0]].evidence[:2]), more=_("len(loader) and len(dataset) printed by every rank; plog of the rank that finished first."),
            source="Ascend/pytorch#48; Ascend/pytorch#43; hicann EI0002", details={"iterations": {str(r): n for r, (n, _l, _d) in sorted(self.iterations.items())[:64]}})

    def _raised(self, found: Found, waits: list[str]) -> Cause | None:
        """An exception on a rank that does not merely report the wait, at the time of the waits or before."""
        victims = {line.rank if line.rank is not None else line.file for i in waits for line in found.matches[i].evidence}
        if any(m.signature.severity is Severity.ERROR and i not in waits and not m.signature.wrapper and i not in found.replaced for i, m in found.matches.items()):
            return None  # a signature knows better
        known = {line.place for m in found.matches.values() for line in m.evidence}
        raised = [line for who, line in self.exceptions.items() if who not in victims and line.place not in known]
        if not raised:
            return None
        line = min(raised, key=lambda r: (r.time if r.time is not None else math.inf, r.file, r.number))
        for i in waits:
            found.linked.setdefault(i, set()).add("other-rank-exception")
        who = _("Rank {rank}").format(rank=line.rank) if line.rank is not None else line.file
        return Cause(
            "other-rank-exception", Severity.ERROR, "high",
            _("{who} stopped with an error of its own ({text}); the others waited for it in a collective and timed out.").format(who=who, text=line.text.strip()[-200:]),
            (
                _("Mend that error: its traceback stands above {place}. The timeouts of the other ranks then go away.").format(place=line.place),
                _("To see such an error at once: torchrun ends all ranks when one fails; launch with it, or catch the error and call torch.distributed.destroy_process_group()."),
            ),
            (line, *found.matches[waits[0]].evidence[:2]), source="hicann EI0002, EI0006", details={"rank": line.rank})

    def _late(self, found: Found, waits: list[str]) -> Cause | None:
        connect = [i for i in waits if i in _CONNECT]
        variable, default = ("HCCL_CONNECT_TIMEOUT", _CONNECT_LIMIT) if connect else ("HCCL_EXEC_TIMEOUT", _EXECUTE_LIMIT)
        stated = found.facts.value(variable) or ""
        limit = int(stated) if stated.isdigit() and int(stated) else default
        best: tuple[float, Line, Line, str] | None = None
        for key, by_rank in self.milestones.items():
            lines = list(by_rank.values())
            if len(lines) < 2 or len({line.dated for line in lines}) > 1:
                continue
            early, late = min(lines, key=lambda line: line.time or 0.0), max(lines, key=lambda line: line.time or 0.0)
            gap = (late.time or 0.0) - (early.time or 0.0)
            if gap > limit and (best is None or gap > best[0]) and gap < 86400 * 7:
                best = (gap, early, late, key)
        if best is None:
            return None
        gap, early, late, _key_ = best
        for i in waits:
            found.linked.setdefault(i, set()).add("late-rank")
        enough = max(300, math.ceil(gap * 1.25 / 100) * 100)
        where = next((line for line in _between(self.milestones, late.rank, early.time, late.time) if line is not late), None)
        doing = _(" Meanwhile it was at: {text}.").format(text=where.text.strip()[:120]) if where else ""
        return Cause(
            "late-rank", Severity.ERROR, "high",
            _("Rank {rank} came late by {gap:.0f} s: it reached the same point at {late} that rank {first} had reached at {early}, and the others wait {limit} s at the most ({variable}). "
              "This is a slow start of that rank, not the network.").format(rank=late.rank, gap=gap, late=late.place, first=early.rank, early=early.place, limit=limit, variable=variable) + doing,
            (
                _("Make that rank quicker or the others wait for it: load shards from a local disk, load once and broadcast, put a torch.distributed.barrier() on the gloo backend before the first collective."),
                _("Raise {variable} to at least {enough} on ALL ranks: export {variable}={enough}").format(variable=variable, enough=enough),
            ),
            tuple(dict.fromkeys([late, early, *([where] if where else []), *found.matches[waits[0]].evidence[:2]])),
            more=_("What the late rank did before: its log from start to there, disk and CPU load of its host."),
            source="vllm-project/afd-plugin#229; hiyouga/LlamaFactory#5071; vllm-project/vllm-ascend#5461",
            details={"rank": late.rank, "late_seconds": round(gap, 1), "limit_seconds": limit})


def _key(text: str) -> str:
    for _n in range(6):
        shorter = _PREFIX.sub("", text, count=1)
        if shorter == text:
            break
        text = shorter
    return _DIGITS.sub("#", text).strip().lower()[:160]


def _between(milestones: dict[str, dict[int, Line]], rank: int | None, start: float | None, end: float | None) -> list[Line]:
    if rank is None or start is None or end is None:
        return []
    lines = [by_rank[rank] for by_rank in milestones.values() if rank in by_rank]
    return [line for line in lines if line.time is not None and start <= line.time <= end]


def new() -> Ranks:
    """A fresh one."""
    return Ranks()
