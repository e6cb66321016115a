"""How many messages a stream asks for at a time, by how long its steps take."""

from __future__ import annotations

import pytest

from headwayd.engine.consuming.stride import Stride

BUDGET_S = 2.0


def test_as_many_as_may_be_at_first_and_fewer_with_each_step_that_takes_long() -> None:
    stride = Stride(most=1_000, budget_s=BUDGET_S)
    told = []
    for _ in range(6):
        told.append(stride.messages)
        stride.note(0.5)
    assert told == [1_000, 500, 250, 125, 62, 50]


def test_more_again_with_each_step_that_is_quick_and_a_little_with_what_lies_between() -> None:
    stride = Stride(most=1_000, budget_s=BUDGET_S)
    for _ in range(9):
        stride.note(1.9)
    told = []
    for took_s in (0.4, 0.1, 0.05, 0.05, 0.3, 0.01, 0.01, 0.01):
        stride.note(took_s)
        told.append(stride.messages)
    assert told == [60, 70, 140, 280, 290, 580, 1_000, 1_000]


@pytest.mark.parametrize("most", [1, 10, 50])
def test_never_more_than_may_be(most: int) -> None:
    stride = Stride(most=most, budget_s=BUDGET_S)
    for took_s in (1.0, 1.0, 0.0, 0.0):
        stride.note(took_s)
        assert stride.messages == most
