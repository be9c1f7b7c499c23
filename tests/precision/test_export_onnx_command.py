"""npulift export: what is in the file, and that it computes the same."""

import json

import onnx
import pytest
import torch
from torch import nn

from npulift.errors import NpuliftError
from npulift.export import export
from npulift.model import Dim, ModelSpec


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.drop, self.head = nn.Embedding(50, 8), nn.Dropout(0.1), nn.Linear(8, 3)

    def forward(self, tokens, scale):
        return self.head(self.drop(self.table(tokens).mean(1))) * scale


def spec(**more):
    torch.manual_seed(0)
    return ModelSpec(Net().eval(), (torch.randint(0, 50, (2, 6)), torch.rand(2, 1)), **more)


def shapes(values):
    return {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}


def test_inputs_have_the_names_of_forwards_parameters(tmp_path):
    export(spec(), tmp_path / "net.onnx")
    assert list(shapes(onnx.load(tmp_path / "net.onnx").graph.input)) == ["tokens", "scale"]


def test_given_names_win(tmp_path):
    export(spec(input_names=("ids", "factor")), tmp_path / "net.onnx")
    assert list(shapes(onnx.load(tmp_path / "net.onnx").graph.input)) == ["ids", "factor"]


def test_dynamic_axes_have_names_and_ranges(tmp_path):
    dims = {0: {0: Dim("batch", 1, 64), 1: Dim("steps", 2, 32)}, 1: {0: Dim("batch", 1, 64)}}
    report = export(spec(dynamic_dims=dims), tmp_path / "net.onnx")
    file = onnx.load(tmp_path / "net.onnx")
    stored = {p.key: p.value for p in file.metadata_props if p.key.startswith("npulift.range.")}
    assert (shapes(file.graph.input)["tokens"], report.data["dynamic_axes"], stored) == (
        ["batch", "steps"], {"batch": "1..64", "steps": "2..32"}, {"npulift.range.batch": "1..64", "npulift.range.steps": "2..32"})


def test_the_file_is_checked_against_eager(tmp_path):
    assert export(spec(), tmp_path / "net.onnx").data["max_abs_error"] < 1e-5


def test_what_left_no_node_is_listed(tmp_path):
    assert export(spec(), tmp_path / "net.onnx").data["removed"]["aten::dropout"] == 1


def test_the_file_passes_onnx_own_checker(tmp_path):
    export(spec(), tmp_path / "net.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "net.onnx"), full_check=True)


def test_attention_whole_or_in_parts(tmp_path):
    class Attention(nn.Module):
        def forward(self, q):
            return nn.functional.scaled_dot_product_attention(q, q, q)

    q = (torch.randn(1, 2, 4, 8),)
    kinds = [export((Attention(), q), tmp_path / f"{form}.onnx", form=form).data["nodes"] for form in ("decomposed", "fused")]
    assert ["Attention" in k for k in kinds] == [False, True]


@pytest.mark.parametrize(("out", "options"), [("net.txt", {}), ("net.onnx", {"form": "other"}), ("net.onnx", {"opset": 3})])
def test_mistakes_are_told(tmp_path, out, options):
    with pytest.raises(NpuliftError):
        export(spec(), tmp_path / out, **options)


def test_view_says_how_when_netron_is_missing(command, tmp_path):
    export(spec(), tmp_path / "net.onnx")
    done = command("view", tmp_path / "net.onnx", env={"PATH": ""})
    assert (done.returncode, "etron" in done.stdout) == (0, True)


def test_the_command_names_a_missing_model(command, tmp_path):
    done = command("export", "nowhere.py:model", "--out", tmp_path / "x.onnx", "--json", "-")
    assert (done.returncode, "nowhere.py" in done.stderr, list(tmp_path.iterdir())) == (2, True, [])


def test_json_on_standard_output_is_json(command, tmp_path):
    file = tmp_path / "net.py"
    file.write_text("import torch\ndef model():\n    return torch.nn.Linear(4, 2).eval(), (torch.randn(3, 4),)\n")
    done = command("export", f"{file}:model", "--out", tmp_path / "x.onnx", "--json", "-")
    assert json.loads(done.stdout)["nodes"] == {"Gemm": 1}
