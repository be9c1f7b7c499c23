"""Real torch_npu on hollow CANN with values: the same programs on `npu` and on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import hollow_checks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the virtual Ascend needs Linux")


@pytest.fixture(scope="module")
def results() -> dict:
    script = Path(__file__).with_name("hollow_checks.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=600, check=False,
                          env={**os.environ, "NPULIFT_CANN": "hollow", "OMP_NUM_THREADS": "2"})
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULTS ")]
    assert found, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(found[0].removeprefix("RESULTS "))


def flat(x) -> list:
    return [y for part in x for y in flat(part)] if isinstance(x, list) else [x]


@pytest.mark.parametrize("name", [c.__name__ for c in hollow_checks.CHECKS])
def test_value(results, name):
    result = results[name]
    assert "error" not in result, result["error"]
    found, expected = flat(result["found"]), flat(result["expected"])
    if all(isinstance(x, (int, float)) for x in expected):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)
    else:
        assert found == expected


DDP = """
import torch, torch_npu
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("hccl")
torch.manual_seed(4)
model = DistributedDataParallel(torch.nn.Linear(4, 2).npu(), device_ids=[0])
model(torch.ones(3, 4).npu()).sum().backward()
total = torch.ones(3).npu()
dist.all_reduce(total)
print("GRADIENT", model.module.weight.grad.flatten().tolist(), total.tolist())
"""


def test_ranks_of_equal_data_average_to_the_gradient_of_one(tmp_path):
    from npulift.ascend.simulation import simulate

    script = tmp_path / "ddp.py"
    script.write_text(DDP)
    done = simulate(str(script), "ascend-910b2", mode="real", cards=2)
    assert any("GRADIENT [3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0] [2.0, 2.0, 2.0]" in line for line in done.log), done.log
