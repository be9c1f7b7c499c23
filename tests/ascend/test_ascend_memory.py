"""Memory: the real allocator's peak, what holds it, and the end of it."""

from __future__ import annotations

import ascend_scripts

from npulift.ascend import memory
from npulift.ascend.run_report import report


def test_the_replayed_peak_is_the_allocators_own_but_for_blocks_that_it_did_not_split(vit):
    usage = memory.usage(vit.trace, vit.result["holders"])
    booked = vit.result["memory"][0]["peak_allocated"]
    assert 0.98 * booked < usage.peak <= booked


def test_parameters_and_optimizer_state_are_told_apart_at_the_peak(vit):
    usage = memory.usage(vit.trace, vit.result["holders"])
    parameters = 5_524_802 * 4  # of this ViT, float32
    assert parameters <= usage.by_kind["parameter"] < parameters * 1.03
    assert 2 * parameters <= usage.by_kind["optimizer state"] < 2 * parameters * 1.02


def test_a_7b_training_step_takes_less_than_a_gigabyte_of_the_host(run):
    done = run(ascend_scripts.LLAMA_7B)
    assert done.status == "finished"
    assert done.host_bytes < 1 << 30
    weights = 6_738_415_616 * 2
    assert 4 * weights < report(done).data["peak_memory_bytes"] < done.chip.usable_bytes


def test_more_than_the_chip_has_is_torch_npus_own_error_at_the_users_line(run):
    done = run("import torch\nimport torch_npu\nkept = [torch.empty(2**30, dtype=torch.uint8, device='npu') for _ in range(100)]\n", "ascend-910b4")
    assert done.error["out_of_memory"]
    assert "NPU out of memory. Tried to allocate 1.00 GiB (NPU 0; 28.97 GiB total capacity; 28.00 GiB already allocated" in done.error["message"]
    assert done.error["line"] == 3


def test_the_verdict_says_that_it_does_not_fit(run):
    done = run("import torch\nimport torch_npu\nx = torch.empty(2**40, dtype=torch.uint8, device='npu')\n")
    data = report(done)
    assert data.data["memory"]["fits"] is False
    assert [f.code for f in data.findings if f.severity.value == "error"] == ["NPU114"]


def test_expandable_segments_count_against_the_same_memory(run, monkeypatch):
    monkeypatch.setenv("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True")
    done = run("import torch\nimport torch_npu\nkept = [torch.empty(2**30, dtype=torch.uint8, device='npu') for _ in range(100)]\n", "ascend-910b4")
    assert done.error["out_of_memory"]
