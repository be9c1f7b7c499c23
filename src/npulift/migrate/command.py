"""migrate: the verb behind `npulift migrate`."""

from __future__ import annotations

import difflib
from pathlib import Path

from npulift.errors import NpuliftError
from npulift.files import write_text
from npulift.findings import Finding, Location, Severity
from npulift.messages import _, ngettext
from npulift.migrate.script import Migrated, Step, migrate_source
from npulift.report.document import Code, Report, Section, Table

LIMIT_BYTES = 5_000_000


def migrate(paths: list[Path], *, write: bool = False) -> Report:
    """Migrate scripts, or every .py below folders. Files are changed only with `write`, each as a whole or not at all. Raises NpuliftError for what is no Python."""
    files = [f for path in paths for f in _files(path)]
    if not files:
        raise NpuliftError(_("There is no Python file in {paths}.").format(paths=", ".join(map(str, paths))))
    done: list[tuple[Path, str, Migrated]] = []
    for file in files:
        if file.stat().st_size > LIMIT_BYTES:
            raise NpuliftError(_("{path} is larger than 5 MB; that is no script.").format(path=file))
        try:
            source = file.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise NpuliftError(_("{path} is not UTF-8 text ({error}).").format(path=file, error=error.reason)) from error
        done.append((file, source, migrate_source(source, str(file))))
    changed = [(f, s, r) for f, s, r in done if r.text != s]
    if write:
        for file, _source, result in changed:
            compile(result.text, str(file), "exec")
            write_text(file, result.text)
    diffs = [_diff(f, s, r.text) for f, s, r in changed]
    findings = tuple(_finding(f, step) for f, _s, r in done for step in r.reports)
    sections: list[Section] = [Code(d, "", "diff") for d in diffs]
    rows = tuple((f.name, step.line or "", step.old, step.new, step.note, step.source) for f, _s, r in done for step in r.steps)
    if rows:
        sections.append(Table(_("What was replaced"), (_("file"), _("line"), "CUDA", "NPU", _("note"), _("source")), rows, top=40))
    n = len(changed)
    head = ngettext("{n} file changes for the NPU", "{n} files change for the NPU", n).format(n=n) if n else _("Nothing to change: no CUDA in it, or migrated already")
    if n:
        head += " " + (_("(written)") if write else _("(not written; --write does it)"))
    return Report(
        "migrate", head, {"input": [str(p) for p in paths] if len(paths) > 1 else str(paths[0])}, findings=findings,
        data={
            "written": [str(f) for f, _s, _r in changed] if write else [], "diff": "".join(d + "\n" for d in diffs),
            "files": [{"file": str(f), "changed": r.text != s, "replacements": [_json(x) for x in r.steps], "to_do": [_json(x) for x in r.reports]} for f, s, r in done],
        },
        sections=tuple(sections),
    )


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(f for f in path.rglob("*.py") if not any(part.startswith(".") or part == "__pycache__" for part in f.relative_to(path).parts))
    if not path.exists():
        raise NpuliftError(_("There is no file {path}.").format(path=path))
    if path.suffix not in (".py", ""):
        raise NpuliftError(_("{path} is not a Python file.").format(path=path))
    return [path]


def _diff(file: Path, old: str, new: str) -> str:
    return "\n".join(difflib.unified_diff(old.splitlines(), new.splitlines(), f"a/{file.name}", f"b/{file.name}", lineterm="", n=2))


def _json(step: Step) -> dict[str, object]:
    return {"kind": step.kind, "cuda": step.old, "npu": step.new or None, "line": step.line, "note": step.note, "source": step.source}


_SEVERITIES = {"extension": Severity.WARNING, "package": Severity.WARNING, "attention": Severity.WARNING}


def _finding(file: Path, step: Step) -> Finding:
    names = {"extension": "cuda-extension", "package": "cuda-package", "attention": "cuda-attention", "environment": "cuda-environment"}
    codes = {"extension": "NPU155", "package": "NPU156", "attention": "NPU157", "environment": "NPU158"}
    message = _("{what} cannot be migrated by itself: {note}.").format(what=step.old, note=step.note or _("no counterpart is known"))
    fix = _("The counterpart is {npu}.").format(npu=step.new) if step.new else _("A custom operator has to be written for the NPU.") if step.kind == "extension" else ""
    return Finding(codes.get(step.kind, "NPU159"), names.get(step.kind, "cuda-only"), _SEVERITIES.get(step.kind, Severity.INFO), message, Location(str(file), step.line), "", fix,
                   details={"cuda": step.old, "source": step.source})
