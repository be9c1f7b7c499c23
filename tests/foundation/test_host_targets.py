"""The runtimes of this machine: right values, a profile, honest precision."""

import numpy as np
import pytest
import torch
from torch import nn

from npulift.changes import Variant
from npulift.measured import Kind
from npulift.model import ModelSpec
from npulift.profile import Profile
from npulift.workbench import Workbench


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 64, 10)).eval()


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    with Workbench(tmp_path_factory.mktemp("bench")) as made:
        yield made


SPEC = ModelSpec(net(), (torch.randn(1, 3, 16, 16),), calibration=tuple((torch.randn(1, 3, 16, 16),) for _ in range(8)))


def outputs(bench, target, **options):
    program = bench.open(bench.build(Variant(SPEC, target, options)))
    return program, program.run((SPEC.inputs[0].numpy(),))[0]


@pytest.mark.parametrize(("target", "options"), [("openvino", {"float": "f32"}), ("onnxruntime", {}), ("cpu", {}), ("openvino", {"float": "f32", "nhwc": [0]})])
def test_values_are_those_of_eager(bench, target, options):
    _program, got = outputs(bench, target, **options)
    np.testing.assert_allclose(got, SPEC.module(*SPEC.inputs).detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("target", ["openvino", "onnxruntime"])
def test_int8_is_near_but_not_the_same(bench, target):
    """The same would mean that nothing was quantised."""
    _program, got = outputs(bench, target, precision="int8")
    wanted = SPEC.module(*SPEC.inputs).detach().numpy()
    gap = np.abs(got - wanted).max() / np.abs(wanted).max()
    assert 1e-5 < gap < 0.2


@pytest.mark.parametrize("target", ["openvino", "onnxruntime", "cpu"])
def test_the_profile_is_measured_and_names_the_convolution(bench, tmp_path, target):
    program, _got = outputs(bench, target)
    program.profile((SPEC.inputs[0].numpy(),), 5, tmp_path / "p.parquet")
    profile = Profile.read(tmp_path / "p.parquet")
    assert profile.kind is Kind.MEASURED
    assert any("conv" in t.lower() for t in profile.events["type"].to_list())


def test_query_model_places_every_operator_on_the_cpu(bench):
    placement = bench.placement(Variant(SPEC, "openvino"))
    assert (placement.on_cpu, placement.accelerated > 4) == (0, True)


def test_one_compilation_serves_every_number_of_threads(bench):
    one, two = (bench.build(Variant(SPEC, "openvino", {"threads": n})) for n in (1, 2))
    assert one.folder == two.folder
