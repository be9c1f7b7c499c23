"""The doctor on the corpus, on unrelated logs, and on 1 GB of plog: how often right, how fast, how much memory.

    python -m benchmarks.doctor [--size MB]
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from npulift.doctor.diagnose import diagnose_text
from npulift.doctor.signatures import read_toml, signatures
from npulift.findings import Severity

SETS = ("written_on_1", "written_on_2", "written_on_3", "written_on_4", "written_on_5")
CORPUS = Path(__file__).resolve().parent.parent / "tests" / "doctor" / "corpus"


def score(name: str) -> tuple[int, int]:
    """(right first causes, pieces) of a corpus file."""
    pieces = read_toml(CORPUS / f"{name}.toml")["piece"]
    right = 0
    for piece in pieces:
        causes = diagnose_text(piece["log"]).causes
        right += bool(causes and causes[0].id in piece["want"]) if piece["want"] else not any(c.severity is Severity.ERROR for c in causes)
    return right, len(pieces)


def unrelated() -> tuple[int, int]:
    """(logs with a claim, logs)."""
    templates = read_toml(CORPUS / "unrelated.toml")["logs"]
    logs = [t.replace("{n}", str(7 + 3 * k + i % 5)).replace("{m}", str(100 + 37 * k + i)) for k in range(5) for i, t in enumerate(templates)]
    return sum(bool(diagnose_text(log).causes) for log in logs), len(logs)


def plog(path: Path, megabytes: int) -> None:
    """A plog of this size with one error at its end."""
    chance = random.Random(0)
    block = "".join(
        f"[INFO] {chance.choice(('RUNTIME', 'HCCL', 'GE', 'ASCENDCL', 'DRV'))}({chance.randint(1, 99999)},python3):2024-08-05-18:{chance.randint(10, 59)}:{chance.randint(10, 59)}.270.506 "
        f"[stream.cc:{chance.randint(1, 4000)}] SubmitTask: device_id={chance.randint(0, 7)}, task_id={chance.randint(0, 65535)}, kernel=MatMul_{chance.getrandbits(64):x}\n"
        for _line in range(20_000)
    ).encode()
    with path.open("wb") as file:
        while file.tell() < megabytes * 1_000_000:
            file.write(block)
        file.write(b"EI0006: 2024-08-05-19:15:21.270.506 Getting socket times out. Reason: x\n")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=1000, metavar="MB")
    size = parser.parse_known_args()[0].size
    print(f"{len(signatures())} signatures")
    print("The signatures were written on the sets below: these figures show what stays right, not how an unknown report fares.")
    for name in SETS:
        right, count = score(name)
        print(f"{name:14} right cause first in {right} of {count} ({right / count:.0%})")
    print("first scores    37 of 61 (set 2), 21 of 30 (set 3), 17 of 33 (set 4), 8 of 26 (set 5), recorded before anything was changed for them")
    claimed, count = unrelated()
    print(f"unrelated      a claim in {claimed} of {count}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plog-1_1.log"
        plog(path, size)
        start = time.monotonic()
        subprocess.run([sys.executable, "-m", "npulift.doctor", str(path), "--quiet"], check=False)
        seconds = time.monotonic() - start
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"plog           {size} MB in {seconds:.1f} s, {memory:.0f} MB of memory (measured here)")


if __name__ == "__main__":
    main()
