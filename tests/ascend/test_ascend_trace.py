"""Launches: how many, of what, caused by which operator, module and line."""

from __future__ import annotations

from collections import Counter

import ascend_scripts
import pytest

from npulift.ascend import diff, records
from npulift.ascend.profiling import profile
from npulift.ascend.records import parse_signature


def launches(simulation, step):
    return Counter(e.phase for e in simulation.trace.events(records.LAUNCH) if e.step == step)


def test_vit_training_step_launches_what_the_prototype_saw(vit):
    assert launches(vit, 1) == {"forward": 363, "backward": 584, "optimizer": 250}


def test_fused_adamw_replaces_the_optimizers_launches_by_ten_with_zero_grad(vit_fused):
    step = [e for e in vit_fused.trace.events(records.LAUNCH) if e.step == 1 and e.phase == "optimizer"]
    zero_grad = [e for e in vit_fused.trace.events(records.LAUNCH) if e.step == 2]
    assert len(step) + len(zero_grad) == 10


def test_every_weight_is_cast_once_a_step_by_autocast(vit):
    casts = [e for e in vit.trace.events(records.LAUNCH) if e.step == 1 and e.phase == "forward" and e.name == "aclnnInplaceCopy" and e.operator == "aten::linear"
             and e.signature.inputs[0].dtype == "float16" and e.signature.inputs[1].dtype == "float32" and len(e.signature.inputs[0].shape) == 2]
    assert len([c for c in casts if "layers" in c.module]) == 12 * 6


def test_attention_output_is_made_contiguous_once_a_layer(vit):
    copies = [e for e in vit.trace.events(records.LAUNCH) if e.step == 1 and e.phase == "forward" and e.operator == "aten::contiguous"]
    assert [c.signature.inputs[0].shape for c in copies] == [(8, 197, 3, 64)] * 12


def test_a_backward_kernel_knows_the_module_and_line_of_its_forward(vit):
    gelu = [e for e in vit.trace.events(records.LAUNCH) if e.name == "aclnnGeluBackward" and e.step == 1]
    assert sorted(e.module for e in gelu) == sorted(f"vit.layers.{i}.mlp.activation_fn" for i in range(12))


def test_the_users_line_is_the_scripts_and_the_call_the_librarys(vit):
    event = next(e for e in vit.trace.events(records.LAUNCH) if e.name == "aclnnAddmm" and e.step == 1)
    script = open(event.location.file).read().splitlines()  # noqa: SIM115
    assert "model(pixel_values=x" in script[event.location.line - 1]
    assert event.call.file.endswith("modeling_vit.py")


@pytest.mark.parametrize("queue", ["0", "1"])
def test_order_and_tensors_are_the_same_with_and_without_the_task_queue(run, vit, queue, monkeypatch):
    monkeypatch.setenv("TASK_QUEUE_ENABLE", queue)
    again = run(ascend_scripts.VIT)
    def sequence(s):
        return [(e.signature.function, e.signature.inputs, e.operator, e.module) for e in s.trace.events(records.LAUNCH)]
    assert sequence(again) == sequence(vit)


def test_diff_names_what_the_fused_optimizer_saves(vit, vit_fused):
    report = diff.report(profile(vit), profile(vit_fused), "plain", "fused", "ascend-910b2")
    counts = {k["type"]: (k["before"], k["after"]) for k in report.data["kernels"]}
    assert counts["aclnnInplaceAddcdiv"] == (400, 2)


def test_diff_of_a_run_with_itself_is_empty(vit):
    assert diff.report(profile(vit), profile(vit), "a", "b", "ascend-910b2").data["changes"] == []


def test_a_signature_gives_inputs_outputs_and_attributes():
    s = parse_signature("aclnnAddmm\tt1:2:192:1\tt1:2:1576,192:192,1\tt1:2:192,192:1,192\ts9:1\ts9:1\tt1:2:1576,192:192,1\t0")
    assert [o.shape for o in s.inputs] == [(192,), (1576, 192), (192, 192)]
    assert [o.shape for o in s.outputs] == [(1576, 192)]
    assert not s.inputs[2].contiguous


def test_a_graph_operator_has_its_border_between_inputs_and_outputs():
    s = parse_signature("aclop:MatMul\tt1:2:4,8:\tt1:2:8,2:\t>\tt1:2:4,2:")
    assert (s.name, len(s.inputs), s.outputs[0].shape) == ("MatMul", 2, (4, 2))
