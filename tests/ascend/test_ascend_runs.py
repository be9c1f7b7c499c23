"""Scripts of every temper: what they do is told, and nothing of it is a traceback of ours."""

from __future__ import annotations

import ascend_scripts
import pytest

from npulift.ascend import records
from npulift.ascend.run_findings import fallbacks
from npulift.ascend.run_report import report
from npulift.errors import NpuliftError

HEAD = "import torch\nimport torch_npu\nx = torch.ones(3).npu() + 1\n"


def test_each_fallback_call_is_counted_although_torch_npu_warns_once(run):
    done = run(ascend_scripts.FALLBACKS)
    assert [(f.operator, f.count, f.location.line) for f in fallbacks(done)] == [("aten::_transformer_encoder_layer_fwd", 3, 9), ("aten::_logcumsumexp", 1, 10)]


def test_a_fallback_gives_right_values_also_in_fake_mode(run):
    done = run(ascend_scripts.FALLBACKS)
    assert "[1.0, 1.6931" in "\n".join(done.log)


def test_ddp_over_four_cards_in_one_process_reduces_every_gradient(run):
    done = run(ascend_scripts.DDP, cards=4)
    reduced = [e for e in done.trace.events(records.COLLECTIVE) if e.name == "HcclAllReduce" and e.bytes > 4096]
    gradients = (256 * 512 + 512 + 512 * 256 + 256) * 4
    assert sum(e.bytes for e in reduced) == 2 * gradients
    assert {e.detail for e in reduced} == {4}


@pytest.mark.parametrize(("source", "status", "code"), [
    ("import sys\nsys.exit('no data')\n", "exit", 1),
    ("import sys\nsys.exit(0)\n", "exit", 0),
    ("import os\nos._exit(3)\n", "exit", 3),
    ("import ctypes\nctypes.string_at(0)\n", "killed", -11),
    ("raise ValueError('this')\n", "error", 1),
])
def test_the_launches_before_an_end_of_any_kind_are_kept(run, source, status, code):
    done = run(HEAD + source)
    assert (done.status, done.exit_code) == (status, code)
    assert done.trace.launches == 1


def test_a_script_that_asks_for_cuda_is_told_how_to_move(run):
    found = report(run("import torch\nm = torch.nn.Linear(2, 2).cuda()\n")).findings
    assert [(f.code, f.location.line) for f in found] == [("NPU116", 2)]


def test_transfer_to_npu_makes_a_cuda_script_run(run):
    done = run("import torch\nimport torch_npu\nfrom torch_npu.contrib import transfer_to_npu\nm = torch.nn.Linear(2, 2).cuda()\nm(torch.ones(1, 2).cuda())\n")
    assert done.status == "finished"
    assert [e.name for e in done.trace.events(records.LAUNCH)] == ["aclnnAddmm"]


def test_spawned_ranks_become_one(run):
    source = (
        "import torch\nimport torch_npu\nimport torch.multiprocessing as mp\nimport torch.distributed as dist\n"
        "def main(rank, world):\n    dist.init_process_group('hccl', init_method='tcp://127.0.0.1:29501', rank=rank, world_size=world)\n"
        "    t = torch.ones(4).npu()\n    dist.all_reduce(t)\n"
        "if __name__ == '__main__':\n    mp.spawn(main, args=(4,), nprocs=4)\n"
    )
    done = run(source)
    assert [(e.name, e.detail, e.bytes) for e in done.trace.events(records.COLLECTIVE)] == [("HcclAllReduce", 4, 16)]


def test_loader_processes_of_a_script_work_and_are_no_part_of_the_trace(run):
    source = "import torch\nimport torch_npu\nfrom torch.utils.data import DataLoader\nfor b in DataLoader(list(range(8)), batch_size=4, num_workers=1):\n    b.npu() + 1\n"
    done = run(source)
    assert (done.status, done.trace.launches) == ("finished", 2)


def test_an_assumed_value_takes_effect_and_is_listed(run):
    source = "import npulift\nimport torch\nimport torch_npu\nn = npulift.assume(torch.ones(3).npu().sum().item(), 3)\nm = int(torch.ones(2).npu().sum())\nprint('got', n, m)\n"
    done = run(source, assume={"0.py:1": 1})
    assert "got 3 0" in done.log
    assert [(a["line"], a["value"]) for a in done.result["assumptions"]] == [(4, "3")]


def test_assume_changes_nothing_outside_a_simulation():
    import npulift

    assert npulift.assume(5, 3) == 5


def test_small_uploads_can_be_read_back_in_fake_mode(run):
    done = run("import torch\nimport torch_npu\nx = torch.tensor([3, 1, 4]).npu()\nprint('back', x.tolist(), x[1].item())\n")
    assert "back [3, 1, 4] 1" in done.log


def test_the_vendors_profiler_runs_without_a_device(run, tmp_path):
    source = (
        "import torch\nimport torch_npu\nm, x = torch.nn.Linear(8, 8).npu(), torch.randn(2, 8).npu()\n"
        f"with torch_npu.profiler.profile(on_trace_ready=torch_npu.profiler.tensorboard_trace_handler({str(tmp_path)!r})) as p:\n    m(x)\n    p.step()\n"
    )
    assert run(source).status == "finished"


@pytest.mark.parametrize(("what", "options", "words"), [
    ("nowhere.py", {}, "no script"), ("x.py:f", {"mode": "half"}, "not a mode"), ("x.py:f", {"cards": 0}, "from 1 to 64"), ("x.py:f", {"target": "ascend-999"}, "no chip"),
])
def test_a_wrong_call_is_refused_with_what_is_right(what, options, words):
    from npulift.ascend.simulation import simulate

    with pytest.raises(NpuliftError, match=words):
        simulate(what, **options)
