"""Target ethos-u with the real compiler: what is delegated, what Vela says, what the reference model says, and what is refused in words."""

import numpy as np
import pytest
import torch
from torch import nn

from npulift.changes import Variant
from npulift.errors import NpuliftError
from npulift.measured import Kind
from npulift.model import Dim, ModelSpec
from npulift.profile import Profile
from npulift.targets.base import find_target
from npulift.tracing import capture
from npulift.workbench import Workbench

executorch = pytest.importorskip("executorch", reason="executorch is not installed (pip install 'npulift[ethos-u]')")


class Net(nn.Module):
    def __init__(self, topk=False):
        super().__init__()
        torch.manual_seed(0)
        self.c1, self.c2, self.fc, self.topk = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1), nn.Linear(8, 4), topk

    def forward(self, x):
        x = torch.relu(self.c2(torch.relu(self.c1(x)))).mean((2, 3))
        y = self.fc(x)
        return torch.topk(y, 2)[0] if self.topk else y


def spec(topk=False):
    return ModelSpec(Net(topk).eval(), (torch.randn(1, 3, 16, 16),), calibration=tuple((torch.randn(1, 3, 16, 16),) for _ in range(4)))


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    with Workbench(tmp_path_factory.mktemp("ethosu")) as made:
        yield made


@pytest.fixture(scope="module")
def plain(bench):
    return bench.build(Variant(spec(), "ethos-u85-256"))


def test_every_operator_of_a_small_network_is_delegated(plain):
    assert (plain.facts["subgraphs"], plain.facts["on_cpu"]) == (1, 0)


def test_the_reference_model_agrees_with_the_quantised_graph_to_one_code(plain):
    assert plain.facts["reference"]["ran"]
    assert plain.facts["reference"]["codes_off"] <= 1.0


def test_values_are_near_eager_but_quantised(bench, plain):
    given = spec()
    got = bench.open(plain).run((given.inputs[0].numpy(),))[0]
    wanted = given.module(*given.inputs).detach().numpy()
    gap = np.abs(got - wanted).max() / np.abs(wanted).max()
    assert 1e-6 < gap < 0.2


def test_velas_layers_add_up_to_its_total(bench, plain, tmp_path):
    bench.open(plain).profile((np.zeros((1, 3, 16, 16), np.float32),), 1, tmp_path / "p.parquet")
    profile, score = Profile.read(tmp_path / "p.parquet"), bench.score(plain)
    assert profile.kind is score.kind is Kind.VENDOR_ESTIMATE
    assert profile.events["cycles"].sum() == score.parts["cycles"]


def test_a_channels_last_input_costs_fewer_cycles_by_velas_estimate(bench, plain):
    changed = bench.build(Variant(spec(), "ethos-u85-256", {"nhwc": [0]}))
    assert bench.score(changed).parts["transpose_cycles"] < bench.score(plain).parts["transpose_cycles"]


def test_what_stays_on_the_cpu_is_named_with_the_users_line_and_the_reason(bench):
    placement = bench.placement(Variant(spec(topk=True), "ethos-u85-256"))
    (left,) = [p for p in placement.placed if not p.accelerated]
    assert "topk" in left.operator
    assert left.op.location.file == __file__
    assert left.reason


def test_a_dim_that_varies_is_refused_before_anything_is_lowered():
    given = ModelSpec(Net().eval(), (torch.randn(2, 3, 16, 16),), dynamic_dims={0: {0: Dim("batch", 1, 8)}})
    assert [f.code for f in find_target("ethos-u55-128").findings(capture(given))] == ["NPU722"]


@pytest.mark.parametrize("name", ["ethos-u85-257", "ethos-u99", "ethos-u55-512"])
def test_an_accelerator_that_does_not_exist_gets_the_list(name):
    with pytest.raises(NpuliftError, match="ethos-u85-256"):
        find_target(name)


def test_a_system_configuration_of_another_family_is_refused(bench):
    from npulift.worker import RemoteError

    with pytest.raises(RemoteError, match="Ethos_U55_High_End_Embedded"):
        bench.build(Variant(spec(), "ethos-u55-128", {"system_config": "Ethos_U85_SYS_DRAM_Mid"}))
