"""Interleaved timing: contestants take turns within one run, so that whatever slows the machine slows all of them alike.

The verdict between two contestants rests on the ratios of their times round by round. The confidence interval of the median ratio is
taken from order statistics (the binomial argument behind the sign test), which assumes nothing about how the noise is distributed.
Because we look at the data up to `len(LOOKS)` times and stop as soon as the answer is clear, the error probability is shared among the looks
(Bonferroni): 5 % in all that a difference is claimed where there is none. See docs/measuring.md.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LOOKS = (9, 15, 25, 41)  # rounds after which the data is looked at
ALPHA = 0.05
WORTHWHILE = 0.01  # a win under 1 % is not worth a more complicated program
ROUND_SECONDS = 0.03  # a round lasts at least about this long
SETTLE = 0.003  # s between turns: thread pools spin for a while after their work, and would take the core from the next contestant

Timer = Callable[[int], float]  # calls -> seconds an inference, averaged over that many calls in a row


@dataclass(frozen=True, slots=True)
class Verdict:
    """Candidate against incumbent. ratio: median of candidate time over incumbent time, with its confidence interval low..high.

    clear: 'faster' | 'slower' | 'same'; 'same' means that the interval holds 1, or that the gain is under WORTHWHILE.
    """

    ratio: float
    low: float
    high: float
    rounds: int
    clear: str


def interval(ratios: Sequence[float], alpha: float) -> tuple[float, float]:
    """Confidence interval of the median by order statistics: the narrowest pair (k-th smallest, k-th largest) that covers 1 - alpha."""
    ordered = sorted(ratios)
    n = len(ordered)
    tail, k = 0.0, 0
    while k < n // 2 and 2 * (tail + math.comb(n, k) / 2**n) <= alpha:
        tail += math.comb(n, k) / 2**n
        k += 1
    if k == 0:
        return 0.0, math.inf
    return ordered[k - 1], ordered[n - k]


def judge(candidate: Sequence[float], incumbent: Sequence[float], alpha: float = ALPHA / len(LOOKS)) -> Verdict:
    """The verdict from paired rounds."""
    ratios = [c / i for c, i in zip(candidate, incumbent, strict=True)]
    low, high = interval(ratios, alpha)
    ratio = statistics.median(ratios)
    clear = "faster" if high < 1.0 and ratio < 1.0 - WORTHWHILE else "slower" if low > 1.0 else "same"
    return Verdict(ratio, low, high, len(ratios), clear)


def calls_for(timer: Timer, seconds: float = ROUND_SECONDS) -> int:
    """How many calls make a round of about `seconds`; warms up as it goes."""
    timer(1)
    once = min(timer(1), timer(1))
    return max(1, min(1000, math.ceil(seconds / max(once, 1e-9))))


def interleaved(timers: dict[str, Timer], rounds: int, calls: dict[str, int] | None = None, seed: int = 0) -> dict[str, list[float]]:
    """Seconds an inference, one entry a round for each contestant; the order within a round is shuffled.

    Before each turn the machine settles for SETTLE seconds and the contestant runs once untimed, since others had the caches.
    """
    calls = calls or {name: calls_for(t) for name, t in timers.items()}
    order = list(timers)
    shuffle = random.Random(seed)
    times: dict[str, list[float]] = {name: [] for name in timers}
    for _round in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            time.sleep(SETTLE)
            timers[name](1)
            times[name].append(timers[name](calls[name]))
    return times


def contest(candidate: Timer, incumbent: Timer, seed: int = 0) -> tuple[Verdict, list[float], list[float]]:
    """Time two contestants against each other until the verdict is clear or the last look is over."""
    timers = {"candidate": candidate, "incumbent": incumbent}
    calls = {name: calls_for(t) for name, t in timers.items()}
    times: dict[str, list[float]] = {name: [] for name in timers}
    verdict = None
    for look in LOOKS:
        more = interleaved(timers, look - len(times["candidate"]), calls, seed + look)
        for name, values in more.items():
            times[name] += values
        verdict = judge(times["candidate"], times["incumbent"])
        if verdict.clear != "same" or (verdict.low > 1 - 2 * WORTHWHILE and verdict.high < 1 + 2 * WORTHWHILE):
            break
    assert verdict is not None
    return verdict, times["candidate"], times["incumbent"]
