"""Poll hints: how often it is worth asking, from a policy and a position."""

from __future__ import annotations

import math

import pytest

from headwayd.domain.hints import (
    BUSIEST_STRETCH,
    LEAST_WINDOW_MS,
    LONGEST_POLL_MAX_MS,
    LONGEST_POLL_MIN_MS,
    PollHints,
    poll_hints,
    stretch,
)
from headwayd.domain.model import Policy

POLICY = Policy(poll_base_ms=1_000, poll_per_position_ms=500, poll_max_ms=60_000)


@pytest.mark.parametrize(
    ("position", "poll_min_ms"),
    [(1, 1_000), (2, 1_500), (3, 2_000), (118, 59_500), (119, 60_000), (120, 60_000), (10**400, 60_000)],
)
def test_poll_min_grows_with_the_position_up_to_the_policys_max(position: int, poll_min_ms: int) -> None:
    assert poll_hints(POLICY, position).poll_min_ms == poll_min_ms


def test_who_does_not_wait_is_asked_as_often_as_the_first() -> None:
    assert poll_hints(POLICY, 0) == poll_hints(POLICY, 1)
    assert poll_hints(POLICY, 0, busy=1.0) == poll_hints(POLICY, 1, busy=1.0)


def test_a_negative_position_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="-1"):
        poll_hints(POLICY, -1)


@pytest.mark.parametrize(
    ("busy", "factor"), [(-1.0, 1.0), (0.0, 1.0), (0.5, 2.5), (1.0, 4.0), (1.1, 4.0), (math.inf, 4.0), (math.nan, 1.0)]
)
def test_a_busy_service_asks_less_often(busy: float, factor: float) -> None:
    assert BUSIEST_STRETCH == 4.0
    assert stretch(busy) == factor
    assert poll_hints(POLICY, 3, busy=busy).poll_min_ms == round(2_000 * factor)


def test_no_stretch_goes_beyond_the_policys_max() -> None:
    assert poll_hints(POLICY, 100, busy=1.0).poll_min_ms == 60_000


@pytest.mark.parametrize(
    ("base_ms", "hints"),
    [
        (10, PollHints(10, 10_010)),
        (1_500, PollHints(1_500, 11_500)),
        (10_000, PollHints(10_000, 20_000)),
        (10_001, PollHints(10_001, 20_002)),
        (303_500, PollHints(303_500, 607_000)),
        (303_501, PollHints(303_501, 607_000)),
        (596_999, PollHints(596_999, 607_000)),
        (597_000, PollHints(597_000, 607_000)),
        (597_001, PollHints(597_000, 607_000)),
        (600_000, PollHints(597_000, 607_000)),
    ],
)
def test_the_window_is_as_wide_as_poll_min_and_at_least_ten_seconds(base_ms: int, hints: PollHints) -> None:
    assert poll_hints(Policy(poll_base_ms=base_ms, poll_max_ms=600_000), 1) == hints


def test_the_bounds_are_those_of_xqueue() -> None:
    assert (LONGEST_POLL_MIN_MS, LONGEST_POLL_MAX_MS, LEAST_WINDOW_MS) == (597_000, 607_000, 10_000)
