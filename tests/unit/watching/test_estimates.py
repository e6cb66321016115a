"""Looks that several readers take: which of them an estimator is told of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headwayd.domain.places import LineNumbers
from headwayd.engine.eta import WaitEstimator
from headwayd.engine.watching.estimates import Estimates, Estimator, NoEstimator
from unit.watching.fake_queue import FakeQueue

START = replace(FakeQueue("g1").numbers, at_ms=1_000_000, length=100, tail=100, leased=1)


class Learning(NoEstimator):
    """Remembers when the looks were."""

    def __init__(self) -> None:
        self.at_ms: list[int] = []

    def observe(self, numbers: LineNumbers) -> None:
        self.at_ms.append(numbers.at_ms)


def looked(*at_ms: int) -> list[int]:
    """Which of these looks are told."""
    learning = Learning()
    estimator = Estimates(lambda: learning).of("q")
    for at in at_ms:
        estimator.observe(replace(START, at_ms=at))
    return learning.at_ms


@pytest.mark.parametrize("older_ms", [0, 1, 1_999, 2_000])
def test_a_look_that_was_overtaken_is_not_told(older_ms: int) -> None:
    assert looked(10_000, 10_000 - older_ms, 10_001) == [10_000, 10_001]


def test_a_clock_that_went_back_is_news() -> None:
    assert looked(10_000, 7_999, 8_000) == [10_000, 7_999, 8_000]


def line_moves(estimator: Estimator, numbers: LineNumbers, *, ms_each: int, steps: int) -> LineNumbers:
    for _ in range(steps):
        numbers = replace(
            numbers,
            at_ms=numbers.at_ms + ms_each,
            head=numbers.head + 1,
            departures=numbers.departures + 1,
            acked=numbers.acked + 1,
            length=numbers.length - 1,
        )
        estimator.observe(numbers)
    return numbers


def test_after_the_clock_went_back_waits_are_learned_anew() -> None:
    estimator = Estimates(WaitEstimator).of("q")
    numbers = line_moves(estimator, START, ms_each=100, steps=30)
    before = estimator.estimate(10)
    numbers = line_moves(estimator, replace(numbers, at_ms=numbers.at_ms - 600_000), ms_each=1_000, steps=30)
    after = estimator.estimate(10)
    assert before is not None
    assert after is not None
    assert after.p50_ms > 5 * before.p50_ms
