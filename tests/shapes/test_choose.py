"""The chooser against brute force, and against what people do by hand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npulift.errors import NpuliftError
from npulift.shapes.choose import choose, equal_steps, expected_cost, powers_of_two, single_maximum
from npulift.shapes.observed import Observed


def cost(box):
    return 5.0 + math.prod(box)


def brute_force(observed, k):
    axes = [sorted(set(observed.sizes[:, d].tolist())) for d in range(observed.sizes.shape[1])]
    boxes = list(itertools.product(*axes))
    return min(expected_cost(subset, observed, cost) for n in range(1, k + 1) for subset in itertools.combinations(boxes, n))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 4))
def test_one_dim_is_as_good_as_brute_force(lengths, k):
    observed = Observed.of(("length",), [(n,) for n in lengths])
    assert choose(observed, k, cost).expected == pytest.approx(brute_force(observed, k))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=8), st.integers(1, 3))
def test_two_dims_are_as_good_as_brute_force(shapes, k):
    observed = Observed.of(("h", "w"), shapes)
    assert choose(observed, k, cost).expected == pytest.approx(brute_force(observed, k))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=2, max_size=60), st.integers(1, 5))
def test_what_is_reported_is_what_the_buckets_cost(shapes, k):
    observed = Observed.of(("h", "w"), shapes)
    choice = choose(observed, k, cost)
    assert choice.expected == pytest.approx(expected_cost(choice.buckets, observed, cost))
    assert len(choice.buckets) <= k


def test_the_bound_of_a_large_problem_is_below_and_near():
    rng = np.random.default_rng(0)
    observed = Observed.of(("h", "w"), (rng.integers(10, 60, (400, 2)) * 8).tolist())
    choice = choose(observed, 5, cost)
    assert choice.method == "exchange+lagrange"
    assert choice.bound <= choice.expected
    assert choice.gap < 0.05


def test_the_choice_is_never_worse_than_the_rules_of_thumb():
    rng = np.random.default_rng(1)
    observed = Observed.of(("length",), [(int(n),) for n in np.clip(rng.lognormal(3, 0.7, 3000), 1, 512)])
    best = choose(observed, 4, cost).expected
    others = (powers_of_two(observed, 4), equal_steps(observed, 4), single_maximum(observed))
    assert all(best <= expected_cost(buckets, observed, cost) + 1e-9 for buckets in others)


def test_every_shape_fits_a_bucket():
    observed = Observed.of(("h", "w"), [(100, 10), (10, 100), (50, 50)])
    boxes = choose(observed, 2, cost).buckets
    assert all(any(b[0] >= h and b[1] >= w for b in boxes) for h, w in observed.sizes)


@pytest.mark.parametrize(("text", "said"), [
    ("", "header"), ("1,2\n3,4\n", "header"), ("length\nx\n", "row 2"), ("length\n0\n", "at least 1"), ("length\n", "no shapes"), ("a,b\n1\n", "row 2"),
])
def test_a_table_of_shapes_that_is_wrong_is_named_by_row(tmp_path, text, said):
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(NpuliftError) as caught:
        Observed.read(tmp_path / "s.csv")
    assert said in str(caught.value)


def test_counts_are_as_good_as_repeated_rows(tmp_path):
    (tmp_path / "a.csv").write_text("length,count\n5,3\n9,1\n")
    (tmp_path / "b.csv").write_text("length\n5\n5\n9\n5\n")
    a, b = Observed.read(tmp_path / "a.csv"), Observed.read(tmp_path / "b.csv")
    assert (a.sizes.tolist(), a.counts.tolist()) == (b.sizes.tolist(), b.counts.tolist())
