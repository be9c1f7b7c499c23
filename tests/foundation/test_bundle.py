"""Bundles: what was saved comes back, and nothing damaged or hostile is opened."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from npulift import bundle
from npulift.changes import Variant
from npulift.errors import NpuliftError
from npulift.model import Dim, ModelSpec
from npulift.workbench import Workbench


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x, scale):
        return {"double": self.linear(x) * 2, "scaled": x * scale}


def make(folder, target="openvino", spec=None):
    spec = spec or ModelSpec(TwoOutputs().eval(), (torch.randn(2, 6), torch.full((1,), 3.0)), input_names=("x", "scale"))
    with Workbench(folder / "work") as bench:
        built = bench.build(Variant(spec, target, {"float": "f32"} if target == "openvino" else {}))
        bundle.save(folder / "bundle", built.folder, target=target, options=built.variant.options, signature=bundle.signature_of(spec, spec.module(*spec.inputs)))
    return spec, folder / "bundle"


@pytest.mark.parametrize("target", ["openvino", "onnxruntime", "cpu"])
def test_a_bundle_gives_what_eager_gives_in_the_same_structure(tmp_path, target):
    spec, path = make(tmp_path, target)
    torch.testing.assert_close(bundle.load(path)(*spec.inputs), spec.module(*spec.inputs))


def test_arrays_do_as_well_as_tensors(tmp_path):
    spec, path = make(tmp_path)
    got = bundle.load(path)(*(i.numpy() for i in spec.inputs))
    torch.testing.assert_close(got["scaled"], spec.inputs[0] * 3)


@pytest.mark.parametrize("target", ["openvino", "onnxruntime", "cpu"])
def test_a_bounded_dim_takes_every_size_within_and_none_beyond(tmp_path, target):
    spec = ModelSpec(nn.Linear(6, 4).eval(), (torch.randn(3, 6),), dynamic_dims={0: {0: Dim("batch", 2, 8)}})
    _spec, path = make(tmp_path, target, spec)
    opened = bundle.load(path)
    for size in (2, 5, 8):
        x = torch.randn(size, 6)
        torch.testing.assert_close(opened(x), spec.module(x))
    with pytest.raises(NpuliftError, match=r"2\.\.8"):
        opened(torch.randn(9, 6))


@pytest.mark.parametrize(("inputs", "said"), [
    ((torch.ones(2, 6),), "takes 2 inputs, not 1"),
    ((torch.ones(2, 7), torch.ones(1)), "compiled for [2, 6]"),
    ((torch.ones(2, 6, dtype=torch.float64), torch.ones(1)), "float64; the bundle was compiled for float32"),
])
def test_inputs_that_do_not_match_are_refused_by_name(tmp_path, inputs, said):
    _spec, path = make(tmp_path)
    with pytest.raises(NpuliftError) as caught:
        bundle.load(path)(*inputs)
    assert said in str(caught.value)


def test_one_flipped_byte_is_noticed(tmp_path):
    _spec, path = make(tmp_path)
    file = path / "program" / "model.bin"
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)
    with pytest.raises(NpuliftError, match="damaged"):
        bundle.load(path)


def test_a_manifest_that_points_outside_is_refused(tmp_path):
    _spec, path = make(tmp_path)
    manifest = json.loads((path / "manifest.json").read_text())
    (tmp_path / "secret").write_text("x")
    manifest["files"]["../secret"] = {"sha256": bundle.digest(tmp_path / "secret"), "bytes": 1}
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(NpuliftError, match="lacks its file"):
        bundle.load(path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 99}', '{"format": 1, "target": 5, "options": {}, "signature": {}, "files": {}}'])
def test_a_folder_that_is_no_bundle_is_refused(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(NpuliftError, match="not a bundle"):
        bundle.load(tmp_path)


def test_a_scalar_output_stays_a_scalar():
    assert bundle.assemble((np.array(2.5),), {"kind": "tensor", "keys": []}).shape == ()
