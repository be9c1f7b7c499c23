"""compare: where numbers go wrong, on models whose first bad operator is known by construction."""

import inspect
import json

import pytest
import torch
from torch import nn

from npulift.errors import NpuliftError
from npulift.precision.compare import compare
from npulift.precision.formats import find_format, quantised, quantised_weight, rounded


class Overflows(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        y = self.first(x) * 1000.0
        z = y.pow(2)
        return self.last(z).sigmoid()


class Underflows(nn.Module):
    def forward(self, x):
        y = x * 1e-5
        z = y.pow(2)
        return z * 1e10


class Divides(nn.Module):
    def forward(self, x):
        y = x * 1e-8
        return y / y.sum()


class MasksAll(nn.Module):
    def forward(self, x):
        return (x + torch.full_like(x, -torch.inf)).softmax(-1)


def line_of(cls, text):
    source, start = inspect.getsourcelines(cls)
    return start + next(i for i, s in enumerate(source) if text in s)


def first(cls, x, precision="float16", target="openvino"):
    torch.manual_seed(0)
    return compare((cls(), (x,)), target, precision=precision, run=False).data["first_bad"]


LARGE = torch.full((2, 4), 40.0)


@pytest.mark.parametrize(("cls", "x", "operator", "reason", "text"), [
    (Overflows, LARGE, "aten::pow", "overflow", "pow(2)"),
    (Underflows, torch.rand(2, 4) + 0.5, "aten::pow", "underflow", "pow(2)"),
    (Divides, torch.rand(2, 4) + 0.5, "aten::mul", "underflow", "1e-8"),
    (MasksAll, torch.rand(2, 4), "aten::softmax", "nan-in-reference", "softmax"),
])
def test_the_first_bad_operator_its_reason_and_its_line(cls, x, operator, reason, text):
    found = first(cls, x)
    assert (found["operator"], found["reason"], found["line"]) == (operator, reason, line_of(cls, text))


def test_what_follows_is_inherited():
    torch.manual_seed(0)
    layers = compare((Overflows(), (LARGE,)), "openvino", precision="float16", run=False).data["layers"]
    behind = layers[[layer["operator"] for layer in layers].index("aten::pow") + 1:]
    assert [layer["caused"] for layer in behind if layer["status"] != "ok"] == [False] * sum(layer["status"] != "ok" for layer in behind)


def test_a_chip_that_saturates_hides_the_overflow():
    assert first(Overflows, LARGE, target="cpu")["reason"] == "overflow"
    from npulift.model import ModelSpec
    from npulift.precision.layers import Comparing, first_bad
    from npulift.precision.values import graph_of
    from npulift.tracing import capture

    torch.manual_seed(0)
    seen = capture(ModelSpec(Overflows(), (LARGE,)), eager=False)
    run = Comparing(graph_of(seen), find_format("float16", saturates=True))
    run.run(LARGE)
    assert first_bad(run.layers).status == "saturation"


def test_bfloat16_has_the_range_that_float16_lacks():
    found = first(Overflows, LARGE, "bfloat16")
    assert found is None or found["reason"] == "precision-loss"


def test_float32_differs_from_itself_by_nothing():
    assert first(Overflows, LARGE, "float32") is None


def test_integers_of_eight_bits_lose_more_than_half_precision():
    torch.manual_seed(0)
    model = (nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)), (torch.randn(8, 64),))
    errors = [compare(model, "openvino", precision=p, run=False).data["outputs"][0]["relative_error"] for p in ("float16", "int8", "int4")]
    assert errors[0] < errors[1] < errors[2]


def test_a_target_that_runs_here_is_compared_itself():
    report = compare((nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), (torch.randn(1, 3, 8, 8),)), "onnxruntime")
    assert [layer["status"] for layer in report.data["target_layers"]] == ["ok"] * len(report.data["target_layers"]) != []


def test_a_model_that_cannot_be_exported_is_a_clear_error():
    class Branch(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(NpuliftError, match="cannot be exported"):
        compare((Branch(), (torch.randn(2),)))


@pytest.mark.parametrize("name", ["float17", "0a8w", "16a99w", ""])
def test_a_precision_that_does_not_exist_is_refused(name):
    with pytest.raises(NpuliftError):
        find_format(name or "?")


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_rounding_is_that_of_torch(name):
    x = torch.randn(1000) * 1e4
    assert torch.equal(rounded(x, find_format(name)), x.to(getattr(torch, name)).float())


def test_quantisation_is_within_half_a_step():
    x = torch.linspace(-3, 5, 999)
    assert float((quantised(x, -3.0, 5.0, 8) - x).abs().max()) <= 8 / 255 / 2 * 1.01 + 8 / 255 / 2  # half a step, and the rounding of the zero point


def test_weights_are_quantised_by_channel():
    weight = torch.tensor([[1.0, 0.5], [1000.0, 500.0]])
    torch.testing.assert_close(quantised_weight(weight, 8), weight, rtol=0.01, atol=0)


TABLE = """layer,cosine,w_absmax,w_p99
stem,0.9995,0.4,0.2
blocks.0.fc2,0.6500,12.0,0.3
blocks.1.fc1,0.9900,0.5,0.25
blocks.1.fc2,0.4000,9.0,0.3
head,0.3900,1.0,0.6
"""


@pytest.fixture
def table(tmp_path):
    file = tmp_path / "layers.csv"
    file.write_text(TABLE)
    return file


def test_a_table_of_layers_shows_the_first_drop_and_its_outliers(table):
    bad = compare(str(table)).data["first_bad"]
    assert (bad["module"], bad["outlier_ratio"], bad["reason"]) == ("blocks.0.fc2", 40.0, "outliers")


def test_the_head_only_inherits(table):
    assert compare(str(table)).data["inherited"] == ["head"]


def test_what_to_keep_at_eight_bits(table):
    assert compare(str(table)).data["keep_at_8_bit"] == ["blocks.0.fc2", "blocks.1.fc2", "head"]


def test_a_signal_to_noise_ratio_serves_as_well(tmp_path):
    file = tmp_path / "layers.csv"
    file.write_text("name;sqnr_db\na;45\nb;44\nc;9\nd;43\n")
    assert compare(str(file)).data["first_bad"]["module"] == "c"


def test_a_sound_table_has_no_first_bad(tmp_path):
    file = tmp_path / "layers.csv"
    file.write_text("layer,cosine\na,0.999\nb,0.998\nc,0.9985\n")
    assert compare(str(file)).data["first_bad"] is None


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "layer,cosine\nx,abc\n", "\x00\x00\x00"])
def test_a_file_that_is_no_such_table_is_a_clear_error(tmp_path, text):
    file = tmp_path / "layers.csv"
    file.write_text(text)
    with pytest.raises(NpuliftError):
        compare(str(file))


def test_the_command_writes_the_contract(command, tmp_path, table):
    done = command("compare", table, "--json", tmp_path / "out.json")
    data = json.loads((tmp_path / "out.json").read_text())
    assert (done.returncode, data["command"], set(data["first_bad"]) >= {"module", "operator", "file", "line", "reason"}) == (0, "compare", True)
