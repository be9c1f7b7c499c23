"""The message catalogues: `update` extracts every message into locale/zh_CN/LC_MESSAGES/<room>.po, `compile` makes the .mo files,
`missing` prints what is untranslated and exits with 1 if anything is.

A room is a folder or a file directly under src/npulift, so that rooms grow side by side without touching each other's catalogue.
    python tools/messages.py update [room ...]
"""

from __future__ import annotations

import ast
import sys
from datetime import datetime, timezone
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_file
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "npulift"
CATALOGUES = SOURCE / "locale" / "zh_CN" / "LC_MESSAGES"
PAGES = {"rules", "rewrites", "advice"}  # in these rooms a file's docstring is what `npulift explain` shows
KEYWORDS = {"_": None, "N_": None, "ngettext": (1, 2)}


def room_of(file: Path) -> str:
    """The first folder or file of the path; in folders of plug-ins each plug-in is a room of its own, e.g. commands-tune, targets-qnn."""
    first, *rest = (part.removesuffix(".py") for part in file.relative_to(SOURCE).parts)
    return f"{first}-{rest[0]}" if first in ("commands", "targets") else first


def extract() -> dict[str, Catalog]:
    """The messages of the sources, a catalogue for each room."""
    rooms: dict[str, Catalog] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        catalogue = rooms.setdefault(room_of(file), Catalog(locale="zh_CN", fuzzy=False))
        for _line, message, comments, context in extract_from_file("python", file, keywords=KEYWORDS):
            catalogue.add(message, locations=[(file.relative_to(SOURCE).as_posix(), 0)], auto_comments=comments, context=context)
        if file.parent.name in PAGES and file.name != "__init__.py":
            page = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
            if page:
                catalogue.add(page, locations=[(file.relative_to(SOURCE).as_posix(), 0)])
    templates = rooms.setdefault("report", Catalog(locale="zh_CN", fuzzy=False))
    for file in sorted((SOURCE / "report" / "templates").glob("*.html")):
        for _line, message, comments, context in extract_from_file("jinja2", file, keywords=KEYWORDS):
            templates.add(message, locations=[(file.relative_to(SOURCE).as_posix(), 0)], auto_comments=comments, context=context)
    return {room: c for room, c in rooms.items() if len(c)}


def read(room: str) -> Catalog:
    path = CATALOGUES / f"{room}.po"
    if not path.exists():
        return Catalog(locale="zh_CN", fuzzy=False)
    with path.open("rb") as file:
        return read_po(file, locale="zh_CN")


def update(rooms: list[str]) -> None:
    for room, template in extract().items():
        if rooms and room not in rooms:
            continue
        existing = read(room)
        merged = Catalog(locale="zh_CN", project="npulift", fuzzy=False)
        merged.header_comment = f"# Chinese messages of npulift, room {room}."
        merged.creation_date = merged.revision_date = datetime(2026, 1, 1, tzinfo=timezone.utc)  # no dates: diffs show messages only
        for message in template:
            if not message.id:
                continue
            old = existing.get(message.id)
            merged.add(message.id, old.string if old else "", locations=[(loc, None) for loc, _n in message.locations], auto_comments=message.auto_comments)
        CATALOGUES.mkdir(parents=True, exist_ok=True)
        with (CATALOGUES / f"{room}.po").open("wb") as file:
            write_po(file, merged, width=140, omit_header=False, include_lineno=False, sort_output=True)
    if not rooms:
        for po in CATALOGUES.glob("*.po"):
            if po.stem not in extract():
                po.unlink()


def compile_all() -> None:
    for po in CATALOGUES.glob("*.po"):
        with po.open("rb") as source, po.with_suffix(".mo").open("wb") as target:
            write_mo(target, read_po(source, locale="zh_CN"))


def missing() -> list[str]:
    """'room: message' for each message without a translation, and for each translation whose {fields} differ from the message's."""
    import string

    def fields(text: str) -> set[str]:
        return {name for _a, name, _b, _c in string.Formatter().parse(text) if name is not None}

    gaps = []
    for room, template in extract().items():
        existing = read(room)
        for message in template:
            if not message.id:
                continue
            found = existing.get(message.id)
            texts = [found.string] if found is not None and isinstance(found.string, str) else list(found.string or ()) if found else []
            if not texts or not all(texts):
                gaps.append(f"{room}: {message.id!r} is not translated")
                continue
            ids = [message.id] if isinstance(message.id, str) else list(message.id)
            try:
                if any(fields(t) - set().union(*(fields(i) for i in ids)) for t in texts):
                    gaps.append(f"{room}: the fields of {message.id!r} differ in its translation")
            except ValueError:
                gaps.append(f"{room}: {message.id!r} or its translation is not a format string")
    return gaps


if __name__ == "__main__":
    verb = sys.argv[1] if len(sys.argv) > 1 else ""
    if verb == "update":
        update(sys.argv[2:])
        compile_all()
    elif verb == "compile":
        compile_all()
    elif verb == "missing":
        gaps = missing()
        print("\n".join(gaps) or "nothing is missing")
        sys.exit(1 if gaps else 0)
    else:
        sys.exit(__doc__)
