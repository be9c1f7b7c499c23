"""The real compiler and simulator of onnxruntime-qnn on small models; the right values are eager PyTorch's."""

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from qnn_models import Attention, Block, Islands, PickPairs, PickRows, RmsNorm
from qnn_programs import run

from npulift.errors import NpuliftError
from npulift.measured import Kind
from npulift.targets.base import find_target
from npulift.targets.qnn import building, socs, wrong_values
from npulift.targets.qnn.schematic import read_schematic
from npulift.targets.qnn.session import check_set_up, open_session
from npulift.targets.qnn.vendor_errors import VendorError

HERE = Path(__file__).parent / "qnn_models.py"


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(HERE.read_text().splitlines(), 1) if text in line)


def image(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def codes(placement):
    return [f.code for f in placement.findings]


# --- placement ---------------------------------------------------------------------------------------------------------------


def test_attention_has_no_operator_on_the_cpu(saved):
    placement = find_target("qnn").placement(saved(Attention(), tuple(image(1, 4, 8, 16) for _ in range(3))), {})
    assert (placement.on_cpu, placement.accelerated > 0) == (0, True)


def test_the_report_says_what_attention_became(saved):
    placement = find_target("qnn").placement(saved(Attention(), tuple(image(1, 4, 8, 16) for _ in range(3))), {})
    finding = next(f for f in placement.findings if f.code == "NPU707")
    assert finding.details["operators"].items() >= {"MatMul": 2, "Softmax": 1}.items()


@pytest.fixture(scope="module")
def islands(tmp_path_factory):
    path = tmp_path_factory.mktemp("islands") / "model.pt2"
    torch.export.save(torch.export.export(Islands().eval(), (image(1, 3, 16, 16),)), path)
    return find_target("qnn").placement(path, {})


def test_refused_operators_are_named_with_the_users_lines(islands):
    found = {(f.details["operator"], f.location.line) for f in islands.findings if f.code == "NPU700"}
    assert found == {("Resize", line_of('mode="bicubic"')), ("Erf", line_of("torch.erf("))}


def test_refused_operators_come_with_the_compilers_reason(islands):
    reasons = {p.operator: p.reason for p in islands.placed if not p.accelerated}
    assert ("cubic" in reasons["Resize"], "Erf" in reasons["Erf"]) == (True, True)


def test_two_islands_are_crossed_four_times(islands):
    assert islands.crossings == 4


def test_each_border_costs_a_transpose(islands):
    assert islands.inserted_transposes == 3  # to the resize, from it, and before the first convolution


# --- silent faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [PickRows(), PickPairs()], ids=["list", "pairs"])
def test_indexing_by_a_list_gives_the_right_rows(module, compiled):
    x = image(4, 6, 16)
    _source, folder, _facts = compiled(module, (x,))
    np.testing.assert_allclose(run(folder, x)[0], module(x).numpy(), atol=0.01)


def test_indexing_by_a_list_is_a_finding(saved):
    assert "NPU704" in codes(find_target("qnn").placement(saved(PickRows(), (image(1, 6, 16),)), {}))


def test_values_that_come_out_wrong_are_found_and_traced_to_the_line(saved):
    source = saved(PickRows(), (image(1, 16, 96),))
    placement = find_target("qnn").placement(source, {"attention": "exporter"})  # as torch.onnx writes it, with GatherND
    assert [f.location.line for f in placement.findings if f.code == "NPU705"] == [line_of("[:, [0, 3, 5]]")]


def test_a_program_with_wrong_values_is_not_handed_out(compiled):
    with pytest.raises(NpuliftError, match="another result than the CPU"):
        compiled(PickRows(), (image(1, 16, 96),), attention="exporter")


# --- errors and ways out -----------------------------------------------------------------------------------------------------


def test_llamas_rms_norm_does_not_finalize_as_torch_writes_it(saved, tmp_path):
    program = torch.export.load(saved(RmsNorm(32), (image(1, 5, 32),)))
    (tmp_path / "out").mkdir()
    with pytest.raises(VendorError) as error:
        building.build(program, building.Attempt(socs.default(), attention="exporter"), tmp_path / "out", [])
    assert error.value.code == 1002


def test_llamas_rms_norm_compiles_here(compiled):
    norm, x = RmsNorm(32), image(1, 5, 32)
    _source, folder, facts = compiled(norm, (x,))
    assert facts["notes"] == []
    np.testing.assert_allclose(run(folder, x)[0], norm(x).detach().numpy(), atol=0.01)


def test_splitting_keeps_all_of_it_on_the_npu(saved, tmp_path):
    norm, x = torch.nn.Sequential(torch.nn.Linear(32, 32), RmsNorm(32), torch.nn.Linear(32, 8)), image(1, 5, 32)
    program = torch.export.load(saved(norm, (x,)))
    (tmp_path / "out").mkdir()
    made = building.build(program, building.Attempt(socs.default(), attention="exporter", split=True), tmp_path / "out", [])
    assert (made.parts["cpu_operators"], made.parts["npu_programs"] > 1) == (0, True)
    np.testing.assert_allclose(run(tmp_path / "out", x)[0], norm(x).detach().numpy(), atol=0.01)


@pytest.fixture
def mlp():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 16)).eval()


def test_without_a_soc_gelu_fails_and_naming_one_helps(mlp, compiled):
    _source, _folder, facts = compiled(mlp, (image(1, 6, 32),), "qnn:0")
    (note,) = facts["notes"]
    assert ("1002" in note, "snapdragon-x-elite" in note, facts["soc"]) == (True, True, 60)


def test_a_chip_without_float_gelu_gets_it_in_a_form_that_it_has(mlp, compiled):
    x = image(1, 6, 32)
    _source, folder, facts = compiled(mlp, (x,), "qnn:30")
    assert (facts["soc"], facts["precision"], facts["cpu_operators"], len(facts["notes"])) == (30, "float", 0, 1)
    np.testing.assert_allclose(run(folder, x)[0], mlp(x).detach().numpy(), atol=1e-3)


def test_a_chip_without_float_convolutions_gets_a_quantised_program_that_is_still_right(compiled):
    torch.manual_seed(4)
    model, x = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval(), image(1, 3, 8, 8)
    _source, folder, facts = compiled(model, (x,), "qnn:sm7325")
    assert (facts["soc"], facts["precision"], facts["cpu_operators"]) == (35, "int16", 0)
    np.testing.assert_allclose(run(folder, x)[0], model(x).detach().numpy(), atol=0.02)


def test_what_failed_and_what_worked_is_a_finding(mlp, saved):
    placement = find_target("qnn:30").placement(saved(mlp, (image(1, 6, 32),)), {})
    finding = next(f for f in placement.findings if f.code == "NPU702")
    assert (finding.details["code"], finding.details["worked"]) == (1002, "gelu-form")


def test_islands_go_when_both_operators_are_written_otherwise(compiled):
    from npulift.rewrites.resize_as_matmul import REWRITE

    module, x = Islands().eval(), image(1, 3, 16, 16)
    graph = torch.export.export(module, (x,)).module(check_guards=False)
    REWRITE.rewrite(graph)
    _source, folder, facts = compiled(graph, (x,), erf="exponential")
    assert facts["cpu_operators"] == 0
    np.testing.assert_allclose(run(folder, x)[0], module(x).detach().numpy(), atol=3e-3)


def test_dynamic_dims_are_refused_with_advice_before_the_compiler_is_called(saved):
    source = saved(torch.nn.Linear(4, 4), (torch.randn(3, 4),), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=8)},))
    with pytest.raises(NpuliftError, match="--bucket"):
        find_target("qnn").compile(source, {}, source.parent)


@pytest.fixture
def linear(saved, tmp_path):
    from npulift.onnx_export import export_onnx

    path = tmp_path / "linear.onnx"
    export_onnx(torch.export.load(saved(torch.nn.Linear(8, 8), (torch.randn(2, 8),))), path)
    return path


def test_a_missing_library_is_an_error_and_not_a_cpu_program(linear):
    with pytest.raises(VendorError):
        check_set_up(open_session(linear, 60, options={"backend_path": "/nowhere/libQnnHtp.so"}))


def test_a_bad_soc_number_is_an_error_and_not_a_cpu_program(linear):
    with pytest.raises(VendorError) as error:
        check_set_up(open_session(linear, 14))
    assert error.value.code == 14001


# --- programs ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float", "int8", "int16"])
def test_a_cnn_in_each_precision(precision, compiled):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 4))
    torch.manual_seed(1)
    x = image(1, 3, 16, 16)
    _source, folder, facts = compiled(model, (x,), precision=precision)
    wanted = model(x).detach().numpy()
    assert facts["cpu_operators"] == 0
    np.testing.assert_allclose(run(folder, x)[0], wanted, atol={"float": 2e-3, "int8": 0.05, "int16": 0.01}[precision] * np.abs(wanted).max() + 1e-3)


def test_operators_left_in_float_are_not_quantised(compiled):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    _source, folder, facts = compiled(model, (image(2, 8),), precision="int8", ignored=[1])
    kinds = [n.op_type for n in onnx.load(folder / "reference.onnx").graph.node]
    assert (facts["quantisable"], kinds[-1]) == (2, "Gemm")


def test_compiling_twice_gives_the_same_score(compiled):
    scores = [find_target("qnn").score(compiled(Block(), (image(1, 6, 64),))[1]) for _time in range(2)]
    assert scores[0] == scores[1]
    assert (scores[0].kind, scores[0].unit) == (Kind.VENDOR_ESTIMATE, "qnn-cost")


def test_the_binary_is_for_the_chip_that_was_named(compiled):
    digests = {
        soc: hashlib.sha256(next(compiled(torch.nn.Linear(8, 8), (image(2, 8),), f"qnn:{soc}")[1].glob("*.bin")).read_bytes()).hexdigest()
        for soc in ("sm8650", "sm8750")
    }
    assert digests["sm8650"] != digests["sm8750"]


def test_a_record_that_names_a_file_elsewhere_is_refused(compiled, tmp_path):
    _source, folder, _facts = compiled(torch.nn.Linear(8, 8), (image(2, 8),))
    record = json.loads((folder / "qnn.json").read_text())
    record["parts"][0]["file"] = "../elsewhere.onnx"
    (folder / "qnn.json").write_text(json.dumps(record))
    with pytest.raises(NpuliftError, match="outside its folder"):
        find_target("qnn").load(folder, {})


def test_a_damaged_context_binary_is_an_error(compiled):
    _source, folder, _facts = compiled(torch.nn.Linear(8, 8), (image(2, 8),))
    binary = next(folder.glob("*.bin"))
    binary.write_bytes(binary.read_bytes()[:2000])
    with pytest.raises(NpuliftError):
        find_target("qnn").load(folder, {})


def test_a_schematic_that_is_cut_short_is_refused(tmp_path):
    file = tmp_path / "x_schematic.bin"
    file.write_text("graph_before_optimization = { # :::BEGIN:graph_before_optimization:::\n")
    with pytest.raises(ValueError, match="cut short"):
        read_schematic(file)


def test_three_linears_cost_less_than_one_that_is_cut_apart(compiled):
    from npulift.rewrites.split_qkv import REWRITE

    block, x = Block(width=96, heads=3), image(1, 50, 96)
    module = torch.export.export(block.eval(), (x,)).module(check_guards=False)
    REWRITE.rewrite(module)
    target = find_target("qnn")
    assert target.score(compiled(module, (x,))[1]).value < target.score(compiled(block, (x,))[1]).value


def test_looking_for_the_first_wrong_value_finds_nothing_in_a_right_program(saved, tmp_path):
    x = image(2, 8)
    program = torch.export.load(saved(torch.nn.Linear(8, 8), (x,)))
    (tmp_path / "out").mkdir()
    made = building.build(program, building.Attempt(socs.default()), tmp_path / "out", [])
    assert wrong_values.compare_with_cpu(made, [x.numpy()])[1] == []
