"""Whatever the looks tell, in order or not, possible or not: estimates stay sound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from eta.test_estimator import START
from headwayd.domain.places import LineNumbers
from headwayd.domain.watching import Eta
from headwayd.engine.eta import MAX_MS, WaitEstimator
from headwayd.engine.pace import MOST_GUESSES, Pace

POSITIONS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 100, 1_000, 10**6, 2**23 - 1, 2**23, 2**24, 2**40)
spans_ms = st.sampled_from((0, 1, 50, 1_000, 10_000, 30_000, 30_001, 10**9, -1, -10_000))
few, many = st.integers(0, 20), st.integers(0, 10**9)


@st.composite
def looks(draw: st.DrawFn) -> Sequence[LineNumbers]:
    """Mostly a queue that could be, sometimes one that could not."""
    numbers, made = START, list[LineNumbers]()
    for _ in range(draw(st.integers(1, 40))):
        departed, put = draw(few | many), draw(few | many)
        numbers = replace(
            numbers,
            generation=draw(st.sampled_from(("first",) * 20 + ("second",))),
            at_ms=numbers.at_ms + draw(spans_ms),
            head=numbers.head + draw(st.just(departed) | st.integers(-5, 5)),
            tail=numbers.tail + put,
            length=draw(st.just(max(numbers.length + put - departed, 0)) | few | many),
            departures=numbers.departures + draw(st.just(departed) | st.integers(-5, 5)),
            leased=draw(few | many),
            limit=draw(st.just(0) | few | many),
            consumers_waiting=draw(st.just(0) | few | many),
            consumers_ready=draw(st.just(0) | few | many),
            consumers_awaited=draw(st.just(0) | few),
            is_paused=draw(st.integers(0, 9)) == 0,
        )
        made.append(numbers)
    return made


def check(etas: Sequence[Eta | None]) -> None:
    """Of growing positions."""
    known = [eta for eta in etas if eta is not None]
    assert etas[: len(known)] == known, "what is told for a position is told for those before it"
    for eta in known:
        assert isinstance(eta.p50_ms, int)
        assert isinstance(eta.p90_ms, int)
        assert 0 <= eta.p50_ms <= eta.p90_ms <= MAX_MS
    for nearer, farther in pairwise(known):
        assert nearer.p50_ms <= farther.p50_ms
        assert nearer.p90_ms <= farther.p90_ms


@settings(max_examples=150)
@given(looks())
def test_estimates_are_finite_ordered_and_grow_with_the_position(history: Sequence[LineNumbers]) -> None:
    estimator = WaitEstimator()
    for numbers in history:
        estimator.observe(numbers)
        check([estimator.estimate(position) for position in POSITIONS])
        check([estimator.estimate_slot(position) for position in POSITIONS])
        if numbers.is_paused:
            assert estimator.estimate(1) is None


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 10**18), few | many), max_size=60), st.sets(st.integers(0, 59)))
def test_a_pace_is_positive_finite_and_remembers_little(spans: Sequence[tuple[int, int]], doubts: set[int]) -> None:
    pace = Pace()
    for at, (span_ms, events) in enumerate(spans):
        pace.learn(span_ms, events)
        if at in doubts:
            pace.doubt(0.5)
        mean_ms = pace.mean_ms()
        assert (mean_ms is None) == (pace.events == 0)
        assert mean_ms is None or 0 < mean_ms < float("inf")
        assert len(pace._guesses) <= MOST_GUESSES


@given(st.integers(1, 10**9), st.integers(1, 200))
def test_an_even_pace_is_told_exactly(span_ms: int, count: int) -> None:
    pace = Pace()
    for _ in range(count):
        pace.learn(span_ms, 1)
    mean_ms = pace.mean_ms()
    assert mean_ms is not None
    assert abs(mean_ms - span_ms) < 1e-6 * span_ms
