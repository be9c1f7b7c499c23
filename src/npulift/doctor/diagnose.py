"""From logs to causes: read, match, analyse, link causes with consequences, put the first failure first."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import IO, Any, Protocol

from npulift.doctor.facts import Facts
from npulift.doctor.reading import Reader, Skipped, log_files
from npulift.doctor.records import Cause, Line
from npulift.doctor.signatures import Signature, literals_of, signatures
from npulift.findings import Severity
from npulift.messages import _, current_language

MOST_EVIDENCE = 5  # lines kept as evidence of a signature
MOST_VALUES = 50  # different values kept of a named group
MOST_MATCHES = 2000  # matches of one signature after which its lines are no longer searched for


@dataclass(slots=True)
class Match:
    """Where a signature was found."""

    signature: Signature
    evidence: list[Line] = field(default_factory=list)
    count: int = 0
    values: dict[str, list[str]] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    ranks: set[int] = field(default_factory=set)

    def add(self, line: Line, found: re.Match[str]) -> None:
        """Count one more line."""
        self.count += 1
        if len(self.evidence) < MOST_EVIDENCE:
            self.evidence.append(line)
        if line.rank is not None:
            self.ranks.add(line.rank)
        for name, value in found.groupdict().items():
            if value is None:
                continue
            self.groups.setdefault(name, value)
            values = self.values.setdefault(name, [])
            if value not in values and len(values) < MOST_VALUES:
                values.append(value)


class Analysis(Protocol):
    """What a file in doctor/analyses/ makes with `new()`: it takes lines with its literals and then draws conclusions that need arithmetic.

    literals: lines with one of them are handed to `line`.   limit: lines after which it wants no more.
    """

    literals: tuple[str, ...]
    limit: int

    def line(self, line: Line) -> None:
        """Take one line."""

    def causes(self, found: Found) -> Iterable[Cause]:
        """Draw conclusions."""


@dataclass(slots=True)
class Found:
    """All that the logs gave, for the analyses to conclude from.

    replaced: ids of signatures that an analysis has taken over.   linked: id of a consequence to ids of its causes, beyond what signatures say.
    """

    matches: dict[str, Match] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)
    replaced: set[str] = field(default_factory=set)
    linked: dict[str, set[str]] = field(default_factory=dict)
    also: dict[str, list[tuple[int, Line, re.Match[str]]]] = field(default_factory=dict)

    def has(self, *ids: str) -> bool:
        """Whether any of the signatures was found."""
        return any(i in self.matches for i in ids)

    def take(self, *ids: str) -> list[Line]:
        """The evidence of these signatures, which are replaced by what the caller concludes."""
        lines: list[Line] = []
        for i in ids:
            if i in self.matches:
                lines += self.matches[i].evidence
                self.replaced.add(i)
        return lines


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """causes: what failed first comes first.   skipped: files that were not read.   lines, bytes: how much was read."""

    causes: tuple[Cause, ...]
    skipped: tuple[Skipped, ...]
    files: tuple[str, ...]
    lines: int
    bytes: int


def diagnose(names: list[str], progress: Callable[[str, int], None] | None = None) -> Diagnosis:
    """Read logs ('-' is standard input, folders are searched) and say what is wrong. Raises NpuliftError for a name that cannot be read."""
    skipped: list[Skipped] = []
    return _diagnose(log_files(names, skipped), skipped, progress)


def diagnose_text(text: str, name: str = "<text>") -> Diagnosis:
    """The same for a text at hand."""
    import io

    return _diagnose(iter([(name, io.BytesIO(text.encode("utf-8", "replace")))]), [], None)


@functools.cache
def _by_literal() -> dict[str, tuple[tuple[Signature, int], ...]]:
    """Literal to the signatures that need it; the number is -1 for the signature's own expressions, else the index into its `also`."""
    table: dict[str, list[tuple[Signature, int]]] = {}
    for signature in signatures():
        owned = [(p, -1) for p in signature.patterns] + [(p, n) for n, a in enumerate(signature.also) for p in a.patterns]
        for pattern, n in owned:
            for literal in literals_of(pattern.pattern):
                if (signature, n) not in table.setdefault(literal, []):
                    table[literal].append((signature, n))
    return {k: tuple(v) for k, v in table.items()}


def analyses() -> list[Analysis]:
    """A fresh one of each analysis."""
    from npulift.doctor import analyses as folder

    made = []
    for info in sorted(pkgutil.iter_modules(folder.__path__), key=lambda m: m.name):
        module = importlib.import_module(f"{folder.__name__}.{info.name}")
        if hasattr(module, "new"):
            made.append(module.new())
    return made


class _Collector:
    """Takes lines from the reader and gives them to signatures and analyses."""

    def __init__(self) -> None:
        self.found = Found()
        self.analyses = analyses()
        self.table = dict(_by_literal())
        self.own: dict[str, list[Any]] = {}
        takers: list[Any] = [self.found.facts, *self.analyses]
        for part in takers:
            for literal in part.literals:
                self.own.setdefault(literal, []).append(part)
        self.left = {id(part): part.limit for part in takers}
        self.reader: Reader | None = None
        self._compile()

    def _compile(self) -> None:
        ordered = sorted({*self.table, *self.own})
        self.literals = set(ordered)
        self._starts: dict[str, list[str]] = {}
        for literal in ordered:
            self._starts.setdefault(literal[:SHORT], []).append(literal)
        self._any = re.compile("|".join(re.escape(s) for s in sorted(self._starts)) or r"(?!)")

    def _present(self, text: str) -> list[str]:
        """The literals that the text holds."""
        found: list[str] = []
        for start in {m.group() for m in _overlapping(self._any, text)}:
            found += [literal for literal in self._starts[start] if literal in text]
        return found

    def __call__(self, line: Line) -> None:
        done: set[tuple[str, int]] = set()
        told: set[int] = set()
        spent: set[str] = set()
        for literal in self._present(line.text):
            for part in self.own.get(literal, ()):
                if id(part) in told:
                    continue
                told.add(id(part))
                if self.left[id(part)] > 0:
                    self.left[id(part)] -= 1
                    part.line(line)
            for signature, n in self.table.get(literal, ()):
                if (signature.id, n) in done:
                    continue
                done.add((signature.id, n))
                match = signature.match(line.text) if n < 0 else _first(signature.also[n].patterns, line.text)
                if match is None:
                    continue
                if n >= 0:
                    self.found.also.setdefault(signature.id, [])
                    if len(self.found.also[signature.id]) < 20:
                        self.found.also[signature.id].append((n, line, match))
                    continue
                entry = self.found.matches.setdefault(signature.id, Match(signature))
                entry.add(line, match)
                if entry.count >= MOST_MATCHES and all(self._spent(s) for s, _n in self.table[literal]):
                    spent.add(literal)
        exhausted = {part for part, left in self.left.items() if left <= 0}
        if exhausted or spent:
            self._drop(spent, exhausted)

    def _spent(self, signature: Signature) -> bool:
        return signature.id in self.found.matches and self.found.matches[signature.id].count >= MOST_MATCHES

    def _drop(self, spent: set[str], exhausted: set[int]) -> None:
        before = set(self.literals)
        for literal in spent:
            self.table.pop(literal, None)
        for literal in list(self.own):
            self.own[literal] = [p for p in self.own[literal] if id(p) not in exhausted]
            if not self.own[literal]:
                del self.own[literal]
        for part in exhausted:
            self.left.pop(part, None)
            self.left[part] = 1 << 60
        self._compile()
        if self.reader is not None and before - self.literals:
            self.reader.drop(before - self.literals)


SHORT = 4


def _first(patterns: tuple[re.Pattern[str], ...], text: str) -> re.Match[str] | None:
    return next((m for p in patterns if (m := p.search(text))), None)


def _overlapping(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    position = 0
    while True:
        found = pattern.search(text, position)
        if found is None:
            return
        yield found
        position = found.start() + 1


def _diagnose(files: Iterator[tuple[str, IO[bytes]]], skipped: list[Skipped], progress: Callable[[str, int], None] | None) -> Diagnosis:
    collector = _Collector()
    reader = Reader(collector.literals, collector, progress)
    collector.reader = reader
    read = []
    for name, file in files:
        read.append(name)
        reader.read(name, file, skipped)
    causes = conclude(collector.found, collector.analyses)
    return Diagnosis(tuple(causes), tuple(skipped), tuple(read), reader.lines, reader.bytes)


def conclude(found: Found, analysed: list[Analysis]) -> list[Cause]:
    """Causes from what was found, consequences folded into them, in the order in which they should be read."""
    drawn: list[Cause] = []
    for analysis in analysed:
        drawn += list(analysis.causes(found))
    drawn += [_cause(m, found) for i, m in found.matches.items() if i not in found.replaced]
    return _linked(drawn, found)


def _cause(match: Match, found: Found) -> Cause:
    signature = match.signature
    said, confidence, evidence, values = [], signature.confidence, list(match.evidence), dict(match.values)
    seen: set[int] = set()
    for n, line, more in found.also.get(signature.id, ()):
        for name, value in more.groupdict().items():
            if value is not None:
                values.setdefault(name, []).append(value)
        if n in seen:
            continue
        seen.add(n)
        evidence.append(line)
        also = signature.also[n]
        said.append(also.say_zh if current_language() == "zh" else also.say)
        confidence = also.confidence or confidence
    cause = " ".join([signature.cause, *said])
    return Cause(
        signature.id, signature.severity, confidence, fill(cause, values), tuple(fill(step, values) for step in signature.fix), tuple(evidence),
        more=fill(signature.more, values), source=signature.source, count=match.count,
        details={k: v for k, v in values.items() if v},
    )


def fill(text: str, values: dict[str, list[str]]) -> str:
    """Put what named groups held into the {name} of a text; a name without a value becomes '?'. Other braces stay."""
    return re.sub(r"\{([a-z_]+)\}", lambda m: ", ".join(dict.fromkeys(values.get(m.group(1), ["?"]))), text)


def _linked(causes: list[Cause], found: Found) -> list[Cause]:
    by_id = {c.id: c for c in causes}
    table = {s.id: s for s in signatures()}
    solid = {c.id for c in causes if c.severity is Severity.ERROR and not (c.id in table and table[c.id].wrapper)}
    parents: dict[str, str] = {}
    for cause in causes:
        signature = table.get(cause.id)
        names = [*(signature.after if signature else ()), *found.linked.get(cause.id, ())]
        parent = next((n for n in names if n in by_id and n != cause.id), None)
        if parent is None and signature is not None and signature.wrapper:
            others = [c for c in causes if c.id in solid] or [c for c in causes if c.id != cause.id and not (c.id in table and table[c.id].wrapper)]
            parent = min(others, key=_when).id if others else None
        if parent is not None:
            parents[cause.id] = parent
    roots = {c.id for c in causes} - set(parents)
    follows: dict[str, list[Cause]] = {}
    for cause in causes:
        root, steps = cause.id, 0
        while root in parents and steps < 50:
            root, steps = parents[root], steps + 1
        if root in roots and root != cause.id:
            follows.setdefault(root, []).append(cause)
        elif root not in roots:  # a ring of links: keep it rather than lose it
            roots.add(cause.id)
    result = []
    for cause in causes:
        if cause.id not in roots:
            continue
        after = sorted(follows.get(cause.id, ()), key=_when)
        own = {line.place for line in cause.evidence}
        lines = tuple(dict.fromkeys(a.first.shown(160) for a in after if a.first and a.first.place not in own))
        result.append(replace(cause, follows=lines, details={**cause.details, **({"follows": [a.id for a in after]} if after else {})}))
    wrappers = [c for c in result if c.id in table and table[c.id].wrapper]
    if len(wrappers) == len(result) and len(wrappers) > 1:  # nothing but wrappers: the earliest speaks for all
        first, *others = sorted(wrappers, key=_when)
        result = [replace(first, follows=tuple(w.first.shown(160) for w in others if w.first))]
    return sorted(result, key=lambda c: (-c.severity.rank, *_when(c)))


def _when(cause: Cause) -> tuple[float, str, int]:
    """Orders by time where lines have one, then by place in the files."""
    first = cause.first
    if first is None:
        return (float("inf"), "", 0)
    return (first.time if first.time is not None else float("inf"), first.file, first.number)


def verdict(causes: Iterable[Cause]) -> str:
    """One sentence on the whole."""
    causes = list(causes)
    errors = [c for c in causes if c.severity is Severity.ERROR]
    if errors:
        first = errors[0].first
        rank = _(" on rank {rank}").format(rank=first.rank) if first and first.rank is not None else ""
        where = first.place if first else "?"
        return _("The first thing that went wrong{rank} is at {where}.").format(rank=rank, where=where)
    if causes:
        return _("Nothing here stopped the run; what follows costs time or accuracy.")
    return _("No known trouble was found in what was read.")
