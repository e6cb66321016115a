"""How much of a deadline the store and waiting may use."""

from __future__ import annotations

from typing import Any, cast

import pytest
from grpc.aio import ServicerContext

from headwayd.rpc.deadlines import look_after_wait_ms, store_budget_s, wait_within_deadline_ms

HOUR_MS = 3_600_000


class Context:
    """Of an RPC, only what is left of its time: as gRPC tells it, which rounds it up by at most a hundredth."""

    def __init__(self, remaining_s: float | None) -> None:
        self._remaining_s = None if remaining_s is None else remaining_s * 1.01

    def time_remaining(self) -> float | None:
        return self._remaining_s


def context(remaining_s: float | None) -> ServicerContext[Any, Any]:
    return cast("ServicerContext[Any, Any]", Context(remaining_s))


@pytest.mark.parametrize(
    ("remaining_s", "budget_s"),
    [
        (None, 2.0),
        (3_600.0, 2.0),
        (2.3, 2.0),
        (2.0, 1.8),
        (1.0, 0.9),
        (0.6, 0.54),
        (0.5, 0.45),
        (0.2, 0.15),
        (0.07, 0.02),
        (0.03, 0.02),  # one honest try
        (0.0, 0.02),
    ],
)
def test_a_tenth_of_a_deadline_and_at_least_50_ms_are_kept_for_the_answer(
    remaining_s: float | None, budget_s: float
) -> None:
    assert store_budget_s(context(remaining_s)) == pytest.approx(budget_s)


@pytest.mark.parametrize(
    ("remaining_s", "wait_ms"),
    [(None, HOUR_MS), (3_600.0, 3_598_000), (20.0, 18_000), (10.0, 9_000), (1.0, 900), (0.5, 400), (0.1, 0), (0.0, 0)],
)
def test_a_wait_ends_a_tenth_of_the_deadline_at_least_100_ms_and_at_most_2_s_before_it(
    remaining_s: float | None, wait_ms: int
) -> None:
    assert wait_within_deadline_ms(HOUR_MS, context(remaining_s)) == pytest.approx(wait_ms, abs=1)
    assert wait_within_deadline_ms(10, context(remaining_s)) == min(10, wait_ms)


@pytest.mark.parametrize(
    ("remaining_s", "wait_ms", "look_ms"),
    [
        (None, HOUR_MS, 2_000),
        (15.0, 100, 2_000),  # a short wait is no reason for haste
        (20.0, 18_000, 1_600),
        (1.0, 900, 90),
        (0.5, 400, 90),
        (0.1, 0, 90),
    ],
)
def test_the_last_look_has_most_of_what_is_left_after_the_wait(
    remaining_s: float | None, wait_ms: int, look_ms: int
) -> None:
    assert look_after_wait_ms(wait_ms, context(remaining_s)) == pytest.approx(look_ms, abs=1)
