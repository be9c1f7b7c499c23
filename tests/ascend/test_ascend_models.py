"""Architectures of transformers: the fallbacks that npulift counts are those that torch_npu warns about, no more and no fewer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import ascend_architectures
import ascend_models

from npulift.ascend import records

FEW = ("vit", "bert", "llama", "fnet", "mixtral", "convnext")


@pytest.mark.parametrize("name", FEW)
def test_fallbacks_of_a_few_architectures_are_torch_npus_own(name):
    done = ascend_models.run(name, "ascend-910b2", "fake")
    assert done.status == "finished"
    assert ascend_models.counted(done) == ascend_models.warned(done)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fake", "real"])
@pytest.mark.parametrize("name", sorted(ascend_architectures.ARCHITECTURES))
def test_fallbacks_of_every_architecture_are_torch_npus_own(name, mode):
    done = ascend_models.run(name, "ascend-910b2", mode)
    assert done.status == "finished", done.error.get("message")
    assert ascend_models.counted(done) == ascend_models.warned(done)


def test_operators_without_a_kernel_are_counted_under_the_name_that_torch_npu_prints(run):
    source = (
        "import torch\nimport torch_npu\nx = torch.rand(4, 4).npu()\n"
        "torch.special.i0(x)\ntorch.logcumsumexp(x, 0)\ntorch.linalg.eigvalsh(x)\ntorch.isin(x, x)\ntorch.nn.functional.fractional_max_pool2d(x[None, None], 2, output_size=2)\n"
    )
    done = run(source)
    assert ascend_models.warned(done)
    assert ascend_models.counted(done) == ascend_models.warned(done)


def test_real_mode_launches_what_fake_mode_launches_and_computes_what_the_cpu_computes(run):
    source = (
        "import copy\nimport torch\nimport torch_npu\n"
        "model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))\n"
        "x, y = torch.randn(32, 8), torch.randn(32, 1)\n"
        "def losses(m, x, y):\n"
        "    o = torch.optim.AdamW(m.parameters(), lr=1e-2)\n    out = []\n"
        "    for _ in range(5):\n        loss = (m(x) - y).pow(2).mean()\n        loss.backward()\n        o.step()\n        o.zero_grad()\n        out.append(loss.item())\n"
        "    return out\n"
        "there = losses(copy.deepcopy(model).npu(), x.npu(), y.npu())\n"
        "here = losses(model, x, y)\n"
        "print('close', max(abs(a - b) for a, b in zip(there, here)) < 1e-5)\n"
    )
    fake, real = run(source), run(source, mode="real")
    assert "close True" in real.log
    def names(s):
        return [e.name for e in s.trace.events(records.LAUNCH)]
    assert names(real) == names(fake)
