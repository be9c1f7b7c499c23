"""Records: their units, their forms on disk."""

import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from npulift.errors import NpuliftError
from npulift.measured import Kind, Measured
from npulift.model import Dim, ModelSpec
from npulift.profile import SCHEMA, Profile


def test_a_profile_comes_back_from_parquet_as_it_was(tmp_path):
    rows = [{"name": "conv", "type": "Convolution", "start_ns": 10**18 + 1, "duration_ns": 5}]
    made = Profile.from_rows(rows, Kind.VENDOR_ESTIMATE, "vela", meta={"chip": "u85"}, notes=("one",))
    made.write(tmp_path / "p.parquet")
    read = Profile.read(tmp_path / "p.parquet")
    assert read.events.equals(made.events)
    assert (read.kind, read.source, read.meta, read.notes) == (made.kind, made.source, made.meta, made.notes)


def test_a_profile_always_has_every_column():
    assert Profile.from_frame(pl.DataFrame({"name": ["a"]}), Kind.MEASURED, "x").events.columns == list(SCHEMA)


def test_an_unknown_column_is_an_error():
    with pytest.raises(KeyError):
        Profile.from_rows([{"nmae": "a"}], Kind.MEASURED, "x")


def test_a_file_that_is_no_profile_is_refused(tmp_path):
    (tmp_path / "p.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(NpuliftError, match="not a profile"):
        Profile.read(tmp_path / "p.parquet")


@given(st.lists(st.floats(1e-6, 10), min_size=1, max_size=30))
def test_the_median_lies_within_and_the_spread_is_not_negative(seconds):
    m = Measured(tuple(seconds), Kind.MEASURED, "CPU")
    assert min(seconds) <= m.median <= max(seconds)
    assert m.spread >= 0


@pytest.mark.parametrize("dims", [{1: {0: Dim("a")}}, {0: {5: Dim("a")}}])
def test_a_dim_of_nothing_is_refused(dims):
    with pytest.raises(ValueError, match="dynamic_dims"):
        ModelSpec(torch.nn.ReLU(), (torch.ones(2, 2),), dynamic_dims=dims)


@pytest.mark.parametrize("arguments", [("bad name",), ("a", 5, 3), ("a", -1)])
def test_a_dim_that_makes_no_sense_is_refused(arguments):
    with pytest.raises(ValueError):  # noqa: PT011 - the wording differs by case
        Dim(*arguments)
