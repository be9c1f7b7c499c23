"""MODEL strings: what a user gets for right ones and for each kind of wrong one."""

import textwrap

import pytest
import torch

from npulift.errors import NpuliftError
from npulift.loading import load_model


def write(folder, text, name="user_model.py"):
    path = folder / name
    path.write_text("import torch\n" + textwrap.dedent(text))
    return path


def test_a_factory_that_returns_a_pair_gives_its_module_and_inputs(tmp_path):
    path = write(tmp_path, "def model():\n    return torch.nn.Linear(3, 2), (torch.ones(1, 3),)\n")
    spec = load_model(f"{path}:model")
    assert (type(spec.module), [tuple(i.shape) for i in spec.inputs], spec.name) == (torch.nn.Linear, [(1, 3)], "user_model")


def test_a_module_class_beside_example_inputs_is_taken_with_its_dynamic_shapes(tmp_path):
    path = write(tmp_path, """
        class Net(torch.nn.Module):
            def forward(self, x): return x * 2
        def example_inputs(): return (torch.ones(2, 3),)
        def dynamic_shapes(): return ({0: torch.export.Dim("b", max=8)},)
    """)
    spec = load_model(f"{path}:Net")
    assert (spec.dynamic_dims[0][0].name, spec.dynamic_dims[0][0].high) == ("b", 8)


def test_a_dotted_module_on_the_path_is_imported(tmp_path, monkeypatch):
    write(tmp_path, "def model():\n    return torch.nn.ReLU(), (torch.ones(1),)\n", "dotted_user_model.py")
    monkeypatch.syspath_prepend(tmp_path)
    assert isinstance(load_model("dotted_user_model:model").module, torch.nn.ReLU)


def test_a_saved_program_comes_back_with_its_bounded_dim(tmp_path):
    program = torch.export.export(torch.nn.Linear(3, 2), (torch.ones(4, 3),), dynamic_shapes=({0: torch.export.Dim("b", min=2, max=16)},))
    torch.export.save(program, tmp_path / "saved.pt2")
    spec = load_model(str(tmp_path / "saved.pt2"))
    dim = spec.dynamic_dims[0][0]
    assert (dim.low, dim.high) == (2, 16)


@pytest.mark.parametrize(("body", "said"), [
    ("def model():\n    raise ValueError('no weights here')", "no weights here"),
    ("def model():\n    return torch.ones(3)", "returned Tensor; expected (module, example_inputs)"),
    ("def model():\n    return torch.nn.ReLU(), {'x': torch.ones(1)}", "by position"),
    ("def model():\n    return torch.nn.ReLU(), ()", "no example inputs"),
    ("def model():\n    return torch.nn.ReLU(), (object(),)", "expected tensors"),
    ("def model():\n    return torch.ones(1, device='cuda'), 1", "CUDA GPU"),
    ("def model():\n    raise SystemExit(3)", "called exit"),
    ("import a_package_that_is_not_there", "a_package_that_is_not_there"),
    ("def (", "SyntaxError"),
    ("def other():\n    pass", "no factory named model. It defines: other"),
])
def test_a_factory_that_is_wrong_is_named_with_what_is_wrong(tmp_path, body, said):
    path = write(tmp_path, body)
    with pytest.raises(NpuliftError) as caught:
        load_model(f"{path}:model")
    assert said in str(caught.value)


@pytest.mark.parametrize(("model", "said"), [
    ("", "MODEL is empty"),
    ("nowhere.py:model", "no file nowhere.py"),
    ("no_such_module_at_all:model", "no module no_such_module_at_all"),
    ("weights.pth", "is a pickle"),
    ("nowhere.pt2", "no file nowhere.pt2"),
])
def test_a_model_string_that_is_wrong_says_what_is_expected(model, said):
    with pytest.raises(NpuliftError) as caught:
        load_model(model)
    assert said in str(caught.value)


def test_a_truncated_program_is_refused_in_words(tmp_path):
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)), tmp_path / "whole.pt2")
    data = (tmp_path / "whole.pt2").read_bytes()
    (tmp_path / "cut.pt2").write_bytes(data[: len(data) // 2])
    with pytest.raises(NpuliftError, match="cut short"):
        load_model(str(tmp_path / "cut.pt2"))
