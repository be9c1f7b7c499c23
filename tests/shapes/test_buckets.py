"""Bucket bundles: any size within gives what the unpadded model gives; the rest is refused in words."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import npulift
from npulift import Dim, ModelSpec
from npulift.compile import compile as compile_model
from npulift.compile import parse_buckets
from npulift.errors import NpuliftError


class Encoder(nn.Module):
    """Attention with a mask, masked mean: padding does not take part."""

    def __init__(self, masked=True):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.qkv, self.out, self.masked = nn.Embedding(50, 16), nn.Linear(16, 48), nn.Linear(16, 4), masked

    def forward(self, ids, mask):
        q, k, v = self.qkv(self.embed(ids)).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / 4
        if self.masked:
            scores = scores.masked_fill(mask[:, None, :] == 0, -1e9)
        x = scores.softmax(-1) @ v
        weights = mask[..., None].float()
        return self.out((x * weights).sum(1) / weights.sum(1)) if self.masked else self.out(x.mean(1))


def inputs(batch, length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 50, (batch, length), generator=generator), torch.ones(batch, length, dtype=torch.int64)


DIMS = {i: {0: Dim("batch", 1, 8), 1: Dim("length", 2, 64)} for i in range(2)}


def spec(masked=True):
    return ModelSpec(Encoder(masked).eval(), inputs(2, 12), dynamic_dims=DIMS, input_names=("ids", "mask"))


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("buckets") / "out"
    compile_model(spec(), "openvino", buckets="2x8,2x24,8x40", precision="f32", out=folder)
    return npulift.load(folder)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 8), st.integers(2, 40))
def test_every_size_within_gives_what_the_unpadded_model_gives(opened, batch, length):
    given_ = inputs(batch, length, seed=length)
    torch.testing.assert_close(opened(*given_), spec().module(*given_), atol=1e-5, rtol=1e-4)


def test_every_remainder_of_one_bucket(opened):
    module = spec().module
    for length in range(9, 25):
        given_ = inputs(2, length, seed=1)
        torch.testing.assert_close(opened(*given_), module(*given_), atol=1e-5, rtol=1e-4)


def test_a_batch_beyond_every_bucket_runs_in_parts(opened):
    given_ = inputs(19, 30)
    torch.testing.assert_close(opened(*given_), spec().module(*given_), atol=1e-5, rtol=1e-4)


def test_a_size_that_fits_nowhere_names_the_buckets_and_the_nearest(opened):
    with pytest.raises(NpuliftError, match="nearest is batch=8,length=40"):
        opened(*inputs(1, 41))


def test_inputs_that_disagree_on_a_dim_are_refused(opened):
    with pytest.raises(NpuliftError, match="do not agree on length"):
        opened(inputs(1, 5)[0], inputs(1, 6)[1])


def test_threads_do_not_mix_their_answers(opened):
    module = spec().module
    wrong = []

    def work(seed):
        for turn in range(20):
            given_ = inputs(1, 2 + (seed * 7 + turn) % 38, seed=seed * 100 + turn)
            if not torch.allclose(opened(*given_), module(*given_), atol=1e-4):
                wrong.append((seed, turn))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert wrong == []


def test_queued_requests_get_their_own_answers(opened):
    module = spec().module
    given_ = [inputs(1, 2 + i % 30, seed=i) for i in range(60)]
    futures = [opened.submit(*g, deadline=0.02) for g in given_]
    for future, g in zip(futures, given_, strict=True):
        torch.testing.assert_close(future.result(timeout=30), module(*g), atol=1e-5, rtol=1e-4)
    opened.close()


def test_a_wrong_request_fails_alone(opened):
    with pytest.raises(NpuliftError):
        opened.submit(*inputs(1, 60))
    assert opened.submit(*inputs(1, 6)).result(timeout=30).shape == (1, 4)
    opened.close()


def test_no_more_buckets_stay_loaded_than_allowed(opened):
    small = npulift.load(opened.path, max_loaded=1)
    for length in (5, 20, 35, 5):
        small(*inputs(1, length))
    assert small.loaded == 1


def test_all_buckets_share_one_set_of_weights(opened):
    assert len({e["sha256"] for n, e in opened.manifest["files"].items() if n.endswith(".bin")}) == 1


def test_padding_that_takes_part_is_refused_at_its_line(tmp_path):
    report = compile_model(spec(masked=False), "openvino", buckets="8,24", out=tmp_path / "out")
    (finding,) = report.findings
    assert (report.ok, finding.code, finding.location.file.endswith("test_buckets.py")) == (False, "NPU235", True)
    assert not (tmp_path / "out").exists()


def test_images_between_buckets_are_letterboxed_and_exact_sizes_are_exact(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()
    report = compile_model(ModelSpec(net, (torch.randn(1, 3, 32, 32),)), "openvino", buckets="24,32", precision="f32", out=tmp_path / "out")
    assert report.data["fit"] == "letterbox"
    bundle = npulift.load(tmp_path / "out")
    x = torch.randn(1, 3, 24, 24)
    torch.testing.assert_close(bundle(x), net(x), atol=1e-5, rtol=1e-4)
    assert bundle(torch.randn(1, 3, 20, 30)).shape == (1, 5)


def test_a_static_target_compiles_one_program_a_bucket(tmp_path):
    """The cpu target would keep dims open; a model that pins its length cannot."""

    class Pinned(nn.Module):
        def forward(self, x):
            return x + torch.arange(x.shape[1] * 1.0)[: len(x[0])].tolist()[0] + x.shape[1]

    report = compile_model(ModelSpec(Pinned(), (torch.ones(2, 6, dtype=torch.int64),)), "openvino", buckets="4,6", fit="pad", precision="f32", out=tmp_path / "out")
    assert len({b["program"] for b in report.data["buckets"]}) >= 1
    np.testing.assert_allclose(npulift.load(tmp_path / "out")(torch.ones(2, 4, dtype=torch.int64)).numpy(), 5.0)


@pytest.mark.parametrize("text", ["", "a", "224,,320", "2x3x4", "0", "-5"])
def test_a_list_of_sizes_that_is_wrong_is_refused(text):
    with pytest.raises(NpuliftError):
        parse_buckets(text, spec())


def test_a_size_outside_the_dims_range_is_refused(tmp_path):
    with pytest.raises(NpuliftError, match="outside the range"):
        compile_model(spec(), "openvino", buckets="65", out=tmp_path / "out")


def test_an_unbounded_dim_is_refused_for_the_intel_npu_before_its_compiler_is_called(tmp_path):
    open_ended = ModelSpec(nn.Embedding(10, 4), (torch.ones(2, 5, dtype=torch.int64),), dynamic_dims={0: {1: Dim("s")}})
    report = compile_model(open_ended, "openvino:NPU", out=tmp_path / "out")
    assert [(f.code, "9223372036854775807" in f.message) for f in report.findings] == [("NPU210", True)]
