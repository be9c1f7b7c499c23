"""Logs as they come: large, binary, hostile, in folders, in other encodings."""

import gzip
import json
import subprocess
import sys

import pytest

from npulift.doctor.diagnose import diagnose, diagnose_text
from npulift.doctor.reading import clean, finder
from npulift.doctor.stamps import rank_of, time_of
from npulift.errors import NpuliftError

LINE = "EI0006: 2024-08-05-18:15:21.270.506 Getting socket times out. Reason: x\n"


def ids(names):
    return [c.id for c in diagnose([str(n) for n in names]).causes]


@pytest.mark.parametrize(("text", "seconds", "dated"), [
    ("EI0006: 2001-09-09-01:46:40.270.506 x", 1_000_000_000.27, True),
    ("[rank0] 10:00:05 x", 36005.0, False),
    ("2001-09-09 01:46:40,500 INFO x", 1_000_000_000.5, True),
    ("W0102 00:00:01.000000 x", 86401.0, True),
    ("no time here 12", None, False),
    ("ratio 1:2:3", None, False),
])
def test_time_of(text, seconds, dated):
    found, has_date = time_of(text)
    assert found == (pytest.approx(seconds) if seconds is not None else None)
    assert has_date is dated


@pytest.mark.parametrize(("text", "file", "rank"), [
    ("[rank3]: x", "", 3), ("[ERROR] (PID:1, Device:0, RankID:12) x", "", 12), ("(PID:1, Device:0, RankID:-1) x", "", None),
    ("(Worker_TP7_EP7 pid=584) x", "", 7), ("x", "logs/rank_5.log", 5), ("x", "train.log", None),
])
def test_rank_of(text, file, rank):
    assert rank_of(text, file) == rank


def test_escape_sequences_never_come_through():
    dirty = "\x1b[31mred\x1b]0;title\x07 \x9b2J EI0006 Getting socket times out \x00\u202e\r\n"
    text = json.dumps([c.as_json() for c in diagnose_text(dirty).causes], ensure_ascii=False)
    assert "Getting socket times out" in text
    assert not any(ord(ch) < 32 or 127 <= ord(ch) < 160 or ch in "\u202e" for ch in text)
    assert clean("a\x1b[1;31mb\x1b(Bc") == "abc"


def test_a_binary_file_is_passed_over(tmp_path):
    import random

    (tmp_path / "core").write_bytes(random.Random(0).randbytes(300_000) + LINE.encode())
    found = diagnose([str(tmp_path / "core")])
    assert found.causes == ()
    assert found.skipped[0].reason


def test_a_line_without_end_is_bounded(tmp_path):
    (tmp_path / "long.log").write_bytes(b"x" * 20_000_000 + b"\n" + LINE.encode() + b"y" * 9_000_000)
    assert ids([tmp_path / "long.log"]) == ["hccl-connect-timeout"]


@pytest.mark.parametrize("text", ["EI0006 " * 400_000, "(" * 1_000_000, "error code is " * 200_000, "a" * 4096 + "not found, should be in dtype support list [" + "DT_," * 100_000])
def test_lines_made_to_explode_end(text):
    diagnose_text(text + "\n" + LINE)


def test_other_encodings_and_compression(tmp_path):
    (tmp_path / "a.log").write_bytes(LINE.encode("utf-16"))
    with gzip.open(tmp_path / "b.log.gz", "wb") as file:
        file.write(LINE.encode())
    assert ids([tmp_path / "a.log"]) == ids([tmp_path / "b.log.gz"]) == ["hccl-connect-timeout"]


def test_a_damaged_archive_says_so(tmp_path):
    (tmp_path / "x.gz").write_bytes(gzip.compress(LINE.encode() * 1000)[:-20])
    assert diagnose([str(tmp_path / "x.gz")]).skipped


def test_folders_are_searched_and_links_are_not_followed(tmp_path):
    (tmp_path / "logs" / "plog").mkdir(parents=True)
    (tmp_path / "logs" / "plog" / "plog-1_2.log").write_text(LINE)
    (tmp_path / "secret.log").write_text("RuntimeError: x, error code is 507018\n")
    (tmp_path / "logs" / "link.log").symlink_to(tmp_path / "secret.log")
    assert ids([tmp_path / "logs"]) == ["hccl-connect-timeout"]


def test_logs_inside_json_are_read():
    assert diagnose_text(json.dumps({"log": "a\n" + LINE + "b\n"})).causes[0].id == "hccl-connect-timeout"


@pytest.mark.parametrize("name", ["nowhere.log", "empty"])
def test_names_that_lead_nowhere(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(NpuliftError):
        diagnose([str(tmp_path / name)])


def test_the_quick_way_finds_the_lines_that_the_plain_way_finds():
    lines = [f"line {i} {'needle' if i % 977 == 0 else ''} {'Grüße' if i % 50 == 0 else ''}" for i in range(30_000)]
    text = "\n".join(lines)
    assert len(text) > 200_000
    assert finder({"needle", "Grü"})(text) == [(i, line) for i, line in enumerate(lines) if "needle" in line or "Grü" in line]


def test_many_matches_are_counted_and_bounded(tmp_path):
    (tmp_path / "x.log").write_text(LINE * 50_000)
    cause = diagnose([str(tmp_path / "x.log")]).causes[0]
    assert cause.count >= 2000
    assert len(cause.evidence) <= 5


def test_from_standard_input_and_the_exit_code(command):
    done = command("doctor", "-", "--json", "-", input=LINE)
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert result["causes"][0]["id"] == result["findings"][0]["name"] == "hccl-connect-timeout"
    assert {"cause", "confidence", "evidence", "fix"} <= set(result["causes"][0])


def test_a_harmless_log_exits_with_0(command):
    assert command("doctor", "-", "--quiet", input="all fine\n").returncode == 0


def test_with_python_alone(root, tmp_path):
    """The file itself, without site-packages: no typer, no rich, no torch."""
    (tmp_path / "x.log").write_text(LINE)
    done = subprocess.run([sys.executable, "-S", "-I", str(root / "src/npulift/doctor/__main__.py"), str(tmp_path / "x.log"), "--lang", "en"], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "victim" in done.stdout
