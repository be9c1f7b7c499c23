"""A bundle for support: environment, logs and report, with secrets, hosts, addresses and user names taken out. What it holds is listed before it is written."""

from __future__ import annotations

import getpass
import io
import json
import os
import re
import socket
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from npulift.doctor.reading import Skipped, clean, log_files
from npulift.files import atomic_file
from npulift.messages import _
from npulift.report.document import Report

MOST_OF_A_LOG = 20 * 1024 * 1024  # bytes of each log that go in: the first and the last half of it
_SECRET_NAME = r"[\w.-]{0,60}(?:token|secret|passw(?:or)?d|passwd|pwd|api[_-]?key|access[_-]?key|private[_-]?key|credential|auth(?:orization)?|cookie|session[_-]?id)[\w.-]{0,40}"
_PATTERNS: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("private key", re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.{0,20000}?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL), "<private key>"),
    ("secret", re.compile(rf"(?i)(\b{_SECRET_NAME}[\"']?\s{{0,3}}[=:]\s{{0,3}}[\"']?(?:Bearer |Basic )?)([^\s\"',;&<>]{{3,2000}})"), r"\1<secret>"),
    ("secret", re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/=._~-]{12,2000}"), r"\1 <secret>"),
    ("secret", re.compile(r"(?i)(--?[\w-]{0,40}(?:token|secret|password|passwd|api-?key)[\w-]{0,20})[ =]([^\s\"']{3,2000})"), r"\1 <secret>"),
    ("secret", re.compile(r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|sk-[A-Za-z0-9_-]{20,}|AKIA[0-9A-Z]{16}|xox[abprs]-[\w-]{10,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{20,})"), "<secret>"),
    ("secret", re.compile(r"(\b[a-z][a-z0-9+.-]{1,20}://)[^\s/@:]{1,200}:[^\s/@]{1,200}@"), r"\1<secret>@"),
    ("address", re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"), "<mail>"),
    ("address", re.compile(r"\b(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)\b(?!\.\d)(?<!127\.0\.0\.1)(?<!0\.0\.0\.0)"), "<address>"),
    ("address", re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{1,4}:){4,7}[0-9a-fA-F]{1,4}(?![\w:])|(?<![\w:.])fe80::[0-9a-fA-F:]{2,30}"), "<address>"),
    ("address", re.compile(r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b"), "<hardware address>"),
    ("user name", re.compile(r"((?:/home/|/Users/|/data/home/|/mnt/home/|[A-Za-z]:\\+Users\\+))([^/\\\s:\"'<>]{1,64})"), r"\1<user>"),
    ("user name", re.compile(r"(?i)(\b(?:user(?:name)?|logname|login|owner)\b[\"']?\s{0,3}[=:]\s{0,3}[\"']?)([A-Za-z_][\w.-]{1,40})"), r"\1<user>"),
    ("host", re.compile(r"(\b[\w.-]{1,40})@([A-Za-z][\w-]{1,62})(?=[:\s#$~\]])"), "<user>@<host>"),
    ("host", re.compile(r"(?i)(\b(?:host(?:name)?|node(?:name)?|master_addr|server|nodelist|machine)\b[\"']?\s{0,3}[=:]\s{0,3}[\"']?(?:[a-z]{2,6}://)?)([A-Za-z][\w-]{1,62}(?:\.[\w-]{1,63}){0,8})"), r"\1<host>"),
    ("host", re.compile(r"(?i)(\bhttps?://)([\w-]{1,63}(?:\.[\w-]{1,63}){0,8})(?=[:/\s]|$)"), r"\1<host>"),
    ("host", re.compile(r"\b[A-Za-z0-9][\w-]{0,62}(?:\.[\w-]{1,63}){0,6}\.(?:local|internal|lan|corp|intranet|cluster|svc)\b"), "<host>"),
)


@dataclass(slots=True)
class Content:
    """What will be written: name to bytes, and how many places were taken out of each."""

    files: dict[str, bytes] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)
    removed: Counter[str] = field(default_factory=Counter)

    def listing(self) -> list[tuple[str, int, int]]:
        """(name, bytes, places taken out) of each file."""
        return [(name, len(data), self.changed.get(name, 0)) for name, data in self.files.items()]

    def add(self, name: str, text: str) -> None:
        """Take a text in, redacted."""
        text, removed = redact(text)
        self.files[name] = text.encode("utf-8")
        self.changed[name] = sum(removed.values())
        self.removed.update(removed)


def redact(text: str) -> tuple[str, Counter[str]]:
    """The text without secrets, hosts, addresses and user names, and how many of each there were."""
    counts: Counter[str] = Counter()
    for kind, known in _known():
        pattern = re.compile(rf"(?<![\w-]){re.escape(known)}(?![\w-])")
        text, n = pattern.subn(f"<{kind}>", text)
        counts["host" if kind == "host" else "user name"] += n
    for kind, pattern, replacement in _PATTERNS:
        text, n = pattern.subn(replacement, text)
        counts[kind] += n
    return text, Counter({k: v for k, v in counts.items() if v})


def _known() -> list[tuple[str, str]]:
    names: list[tuple[str, str]] = []
    try:
        host = socket.gethostname()
        names += [("host", host), ("host", host.partition(".")[0])]
    except OSError:
        pass
    try:
        names.append(("user", getpass.getuser()))
    except (OSError, KeyError, ImportError):
        pass
    names.append(("user", Path.home().name))
    plain = {"root", "user", "home", "localhost", "admin", "ubuntu", "node", "app", "linux", ""}
    return sorted({(k, n) for k, n in names if n.lower() not in plain and len(n) > 2}, key=lambda kn: -len(kn[1]))


def collect(report: Report, logs: list[str]) -> Content:
    """Report, environment and logs, redacted. Raises NpuliftError for a log that cannot be read."""
    from npulift.doctor.environment import environment_report

    content = Content()
    content.add("report.json", json.dumps(report.as_json(), indent=2, ensure_ascii=False))
    state = report if report.subject.get("input") is None and "checks" in report.data else environment_report(smoke=False)
    content.add("environment.json", json.dumps(state.as_json(), indent=2, ensure_ascii=False))
    names = ("ASCEND", "HCCL", "NPU", "PYTORCH", "TORCH", "TASK_QUEUE", "INF_NAN", "CPU_AFFINITY", "OMP_", "ACL", "LD_LIBRARY_PATH", "PYTHONPATH", "PATH", "ADSP", "OV_", "MASTER", "WORLD", "RANK", "GLOO", "VLLM")
    content.add("variables.txt", "".join(f"{k}={v}\n" for k, v in sorted(os.environ.items()) if k.startswith(names)))
    skipped: list[Skipped] = []
    number = 0
    for name, file in log_files([entry for entry in logs if entry != "-"], skipped):
        data = file.read(MOST_OF_A_LOG // 2)
        if data[:4096].count(b"\0") > 64:
            continue
        tail = b""
        while block := file.read(MOST_OF_A_LOG // 2):
            tail = (tail + block)[-MOST_OF_A_LOG // 2 :]
        if tail:
            data += b"\n[... " + _("cut here").encode() + b" ...]\n" + tail
        number += 1
        shown = re.sub(r"[^\w.-]", "_", Path(name).name)[-80:] or "log"
        content.add(f"logs/{number:03d}-{shown}", "\n".join(clean(line) for line in data.decode("utf-8", "replace").split("\n")))
    content.add("README.txt", _("Written by npulift doctor --bundle. Secrets, host names, addresses and user names were replaced; look through it before you send it.") + "\n" + "\n".join(f"{k}: {v}" for k, v in content.removed.items()) + "\n")
    return content


def write(content: Content, path: Path) -> None:
    """Write the ZIP, whole or not at all."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.files.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    with atomic_file(path) as temporary:
        temporary.write_bytes(buffer.getvalue())
