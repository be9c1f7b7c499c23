"""The verdict between two contestants, on series whose truth is known."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npulift import timing


def noisy(mean, n, seed, spread=0.1):
    rng = random.Random(seed)
    return [mean * math.exp(rng.gauss(0, spread)) for _ in range(n)]


def test_a_clear_gain_is_faster_and_its_mirror_slower():
    a, b = noisy(0.8, 25, 1), noisy(1.0, 25, 2)
    assert (timing.judge(a, b).clear, timing.judge(b, a).clear) == ("faster", "slower")


def test_no_difference_is_claimed_more_often_than_the_error_probability_allows():
    claims = sum(timing.judge(noisy(1, 25, 2 * s), noisy(1, 25, 2 * s + 1)).clear != "same" for s in range(600))
    assert claims / 600 < timing.ALPHA


def test_a_gain_under_the_worthwhile_is_no_win():
    assert timing.judge([0.995] * 41, [1.0] * 41).clear == "same"


@given(st.lists(st.floats(0.1, 10), min_size=9, max_size=41))
def test_the_interval_holds_the_median(ratios):
    low, high = timing.interval(ratios, 0.05)
    assert low <= sorted(ratios)[len(ratios) // 2] <= high


@settings(deadline=None)
@given(st.integers(1, 4))
def test_too_few_rounds_give_no_verdict(n):
    assert timing.judge([0.5] * n, [1.0] * n).clear == "same"


def test_the_interval_covers_as_the_binomial_says():
    """n = 9 at 1.25 %: the sign-test tail of one side is 1/512, so the narrowest covering pair is the extremes."""
    assert timing.interval(range(1, 10), 0.0125) == (1, 9)


def test_contestants_take_turns_in_every_round():
    order = []
    timers = {n: (lambda calls, n=n: order.append(n) or 1.0) for n in "abc"}
    timing.interleaved(timers, 4, dict.fromkeys("abc", 1))
    turns = order[1::2]  # each turn is one untimed call and one timed call
    assert order[::2] == turns
    assert [sorted(turns[i : i + 3]) for i in range(0, 12, 3)] == [["a", "b", "c"]] * 4


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_contest_ends_early_when_the_answer_is_clear(factor):
    verdict, mine, theirs = timing.contest(lambda calls: factor, lambda calls: 1.0)
    assert (verdict.clear, len(mine)) == ("faster" if factor < 1 else "slower", timing.LOOKS[0])
