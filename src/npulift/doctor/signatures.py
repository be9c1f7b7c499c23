"""The signatures: readable entries in doctor/signatures/*.toml, compiled so that no log can make them slow.

An entry says `find` (regular expressions for one line), `cause`, `fix` (steps, least effort first), both also in Chinese (`cause_zh`, `fix_zh`),
`source`, an `example` that matches and a `near_miss` that must not. `after` names the signatures or analyses which, when found too, make
this one a consequence; `wrapper = true` marks a message that only wraps another; `also` lists further evidence that adds a sentence.
Each expression must hold a literal of at least four characters: logs are searched for those first, and only lines with one are matched.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npulift.findings import Severity
from npulift.messages import current_language

FOLDER = Path(__file__).parent / "signatures"
SHORTEST_LITERAL = 4


@dataclass(frozen=True, slots=True)
class Also:
    """Further evidence for a signature: a sentence to add when it is found anywhere in the log."""

    patterns: tuple[re.Pattern[str], ...]
    say: str
    say_zh: str
    confidence: str


@dataclass(frozen=True, slots=True)
class Signature:
    """One entry; see the module's text."""

    id: str
    area: str
    severity: Severity
    confidence: str
    patterns: tuple[re.Pattern[str], ...]
    cause_en: str
    cause_zh: str
    fix_en: tuple[str, ...]
    fix_zh: tuple[str, ...]
    source: str
    example: str
    near_miss: str
    more_en: str = ""
    more_zh: str = ""
    after: tuple[str, ...] = ()
    wrapper: bool = False
    also: tuple[Also, ...] = ()

    @property
    def cause(self) -> str:
        """In the active language."""
        return self.cause_zh if current_language() == "zh" else self.cause_en

    @property
    def fix(self) -> tuple[str, ...]:
        """In the active language."""
        return self.fix_zh if current_language() == "zh" else self.fix_en

    @property
    def more(self) -> str:
        """In the active language."""
        return self.more_zh if current_language() == "zh" else self.more_en

    def match(self, text: str) -> re.Match[str] | None:
        """The first expression that matches."""
        for pattern in self.patterns:
            found = pattern.search(text)
            if found:
                return found
        return None


@functools.cache
def signatures() -> tuple[Signature, ...]:
    """Every signature, in the order of the files' names. Raises ValueError for an entry that is not right."""
    entries: list[Signature] = []
    for file in sorted(FOLDER.glob("*.toml")):
        for entry in read_toml(file).get("signature", []):
            try:
                entries.append(_signature(entry, file.stem))
            except (KeyError, TypeError, ValueError, re.error) as error:
                raise ValueError(f"{file.name}: {entry.get('id', '?')}: {error!r}") from error
    return tuple(entries)


def read_toml(file: Path) -> dict[str, Any]:
    """Read TOML with what there is: tomllib (Python 3.11), tomli, or the copy that pip carries."""
    try:
        import tomllib as toml  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        try:
            import tomli as toml  # type: ignore[import-not-found, no-redef, unused-ignore]
        except ImportError:
            from pip._vendor import tomli as toml  # type: ignore[no-redef]
    return dict(toml.loads(file.read_text(encoding="utf-8")))


def literals_of(pattern: str) -> tuple[str, ...]:
    """Literals of which every match of the expression has one: of a bare alternation one each, else the longest run outside groups and classes.

    Raises ValueError when there is none of at least SHORTEST_LITERAL characters.
    """
    return tuple(_longest_run(part) for part in _alternatives(pattern))


def _alternatives(pattern: str) -> list[str]:
    parts, depth, start, i = [], 0, 0, 0
    while i < len(pattern):
        char = pattern[i]
        if char == "\\":
            i += 2
            continue
        if char == "[":
            i = _class_end(pattern, i)
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif char == "|" and depth == 0:
            parts.append(pattern[start:i])
            start = i + 1
        i += 1
    return [*parts, pattern[start:]]


def _class_end(pattern: str, start: int) -> int:
    """Index of the ']' that closes the class that starts at `start`; one that comes first in it is a literal."""
    i = start + (2 if pattern[start + 1 : start + 2] == "^" else 1)
    if pattern[i : i + 1] == "]":
        i += 1
    while i < len(pattern) and pattern[i] != "]":
        i += 2 if pattern[i] == "\\" else 1
    return i


def _longest_run(pattern: str) -> str:
    runs, run, depth, i = [""], "", 0, 0
    while i < len(pattern):
        char, literal = pattern[i], None
        if char == "\\" and i + 1 < len(pattern):
            literal = pattern[i + 1] if not pattern[i + 1].isalnum() else None
            i += 1
        elif char == "[":
            i = _class_end(pattern, i)
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif char not in ".^$*+?{}|":
            literal = char
        elif char == "{":
            while i < len(pattern) and pattern[i] != "}":
                i += 1
        optional = pattern[i + 1 : i + 2] in ("?", "*", "{")
        if literal is not None and depth == 0 and not optional:
            run += literal
        else:
            runs.append(run)
            run = ""
        i += 1
    longest = max([*runs, run], key=len)
    if len(longest) < SHORTEST_LITERAL:
        raise ValueError(f"no literal of {SHORTEST_LITERAL} characters in {pattern!r}")
    return longest


def _other_spellings(find: list[str]) -> list[str]:
    """'error code is 507015' stands for the other ways in which the same number is written: error code:507015, ret = 507015, failed: 507015, ..."""
    codes = dict.fromkeys(m.group(1) for p in find if (m := re.fullmatch(r"error code is (\d{6})(?:\\b)?", p)))
    return [rf"(?:[cC]ode|[eE]rrno|[rR]esult|[rR]et|[fF]ailed|[eE]rror)\W{{1,12}}{code}\b" for code in codes]


def _signature(entry: dict[str, Any], area: str) -> Signature:
    find = [*entry["find"], *_other_spellings(entry["find"])]
    for pattern in find:
        literals_of(pattern)
    also = tuple(
        Also(
            tuple(re.compile(p) for p in a["find"]), a["say"], a["say_zh"], a.get("confidence", ""),
        )
        for a in entry.get("also", [])
    )
    return Signature(
        id=entry["id"], area=area, severity=Severity(entry["severity"]), confidence=entry["confidence"],
        patterns=tuple(re.compile(p) for p in find),
        cause_en=entry["cause"], cause_zh=entry["cause_zh"], fix_en=tuple(entry["fix"]), fix_zh=tuple(entry["fix_zh"]),
        source=entry["source"], example=entry["example"], near_miss=entry["near_miss"],
        more_en=entry.get("more", ""), more_zh=entry.get("more_zh", ""),
        after=tuple(entry.get("after", ())), wrapper=entry.get("wrapper", False), also=also,
    )
