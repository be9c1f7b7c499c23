"""Verification: what counts as different."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from npulift import verify
from npulift.model import ModelSpec


@pytest.mark.parametrize(("got", "wanted", "error"), [
    ([1.0, 2.0], [1.0, 4.0], (2.0, 0.5)),
    ([math.nan, 1.0], [math.nan, 1.0], (0.0, 0.0)),
    ([math.inf], [math.inf], (0.0, 0.0)),
    ([math.nan], [1.0], (math.inf, math.inf)),
    ([math.inf], [1.0], (math.inf, math.inf)),
    ([1.0], [1.0, 2.0], (math.inf, math.inf)),
    ([], [], (0.0, 0.0)),
])
def test_difference(got, wanted, error):
    assert verify.difference(np.array(got), np.array(wanted)) == error


@given(hnp.arrays(np.float32, hnp.array_shapes(max_dims=3), elements=st.floats(-1e3, 1e3, width=32)))
def test_an_array_does_not_differ_from_itself(array):
    assert verify.difference(array, array.copy()) == (0.0, 0.0)


def test_generated_indices_stay_within_what_the_example_has():
    spec = ModelSpec(torch.nn.Embedding(10, 4), (torch.tensor([[3, 7]]),))
    for _name, (ids,) in verify.edge_inputs(spec):
        assert ids.min() >= 3
        assert ids.max() <= 7


def test_a_wrong_candidate_is_seen_on_a_generated_input_alone():
    """Right on the example (all positive), wrong for negative numbers."""
    spec = ModelSpec(torch.nn.Identity(), (torch.rand(4, 4) + 0.5,))
    wanted = verify.reference(spec)
    check = verify.compare(lambda inputs: (np.abs(inputs[0]),), spec, wanted)
    assert (check.relative, check.edge_name) == (0.0, "random")
