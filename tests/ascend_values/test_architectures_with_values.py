"""45 architectures of transformers, forward and backward on hollow CANN with values, against the CPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).with_name("architecture_checks.py")
NAMES = re.findall(r'^ +"(\w+)": lambda', CHECKS.read_text(encoding="utf-8"), flags=re.M)  # read, not imported: that would import transformers

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="the virtual Ascend needs Linux")]


@pytest.fixture(scope="module")
def results() -> dict:
    done = subprocess.run([sys.executable, str(CHECKS)], capture_output=True, text=True, timeout=900, check=False, env={**os.environ, "NPULIFT_CANN": "hollow"})
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULTS ")]
    assert found, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(found[0].removeprefix("RESULTS "))


def test_there_are_forty_or_more():
    assert len(NAMES) >= 40


@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_equal_those_of_the_cpu(results, name):
    result = results[name]
    assert not isinstance(result, str), result
    assert (result[0] < 1e-4, result[1] < 1e-3) == (True, True), result
