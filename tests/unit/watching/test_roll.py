"""The update rule: who is to be told of a position, and when."""

from __future__ import annotations

import pytest

from headwayd.domain.model import Policy
from headwayd.domain.places import NEAR, Whereabouts
from headwayd.engine.watching.roll import Roll
from headwayd.engine.watching.watch import Watch, Watcher

MIN_S, MAX_S = 2.0, 12.0  # of this policy, wherever one stands


@pytest.fixture
def roll() -> Roll:
    rolls = Roll()
    rolls.policy = Policy(poll_base_ms=2_000, poll_per_position_ms=0, poll_max_ms=2_000)
    return rolls


def told_at(roll: Roll, position: int, now: float = 0.0) -> Watch:
    """A watch that was just told so."""
    watch = Watcher(["m"]).watches[0]
    watch.state, watch.is_changed = Whereabouts.WAITING, False
    watch.position = watch.told_position = position
    watch.told_at = now
    roll.put_off(watch, now)
    return watch


@pytest.mark.parametrize(
    ("told", "position", "after_s", "is_due"),
    [
        (20, 20, 0, False),
        (20, 19, 0, True),
        (1, 2, 0, True),
        (20, 21, 0, True),
        (21, 20, 0, True),  # among the first: at once
        (100, 91, MIN_S, False),
        (100, 90, MIN_S, True),
        (100, 90, MIN_S - 0.1, False),
        (100, 109, MIN_S, False),
        (100, 110, MIN_S, True),
        (100, 100, MAX_S - 0.1, False),
        (100, 100, MAX_S, True),
        (5, 5, MAX_S, True),
    ],
)
def test_the_update_rule(roll: Roll, told: int, position: int, after_s: float, is_due: bool) -> None:
    watch = told_at(roll, told)
    watch.position = position
    assert roll.is_due(watch, after_s) is is_due


def test_far_back_nobody_is_looked_at_before_it_may_be_due(roll: Roll) -> None:
    watch = told_at(roll, 1_000)
    assert roll.come(MIN_S - 0.1) == []
    assert roll.come(MIN_S) == [watch]
    roll.put_off(watch, MIN_S)
    roll.count(left=99, back=0)
    assert roll.moved() == []
    roll.count(left=1, back=0)
    assert roll.moved() == [watch]


def test_before_poll_min_only_coming_among_the_first_counts(roll: Roll) -> None:
    watch = told_at(roll, 100)
    roll.count(left=100 - NEAR - 1, back=5)
    assert roll.moved() == []
    roll.count(left=1, back=0)
    assert roll.moved() == [watch]


def test_near_the_head_everybody_is_looked_at_whenever_the_line_moves(roll: Roll) -> None:
    watch = told_at(roll, NEAR)
    roll.count(left=0, back=1)
    assert roll.moved() == [watch]
    assert roll.come(MAX_S) == [watch]


def test_whoever_rests_is_not_looked_at(roll: Roll) -> None:
    for position in (5, 500):
        watch = told_at(roll, position)
        roll.rest(watch)
    roll.count(left=500, back=500)
    assert roll.moved() == []
    assert roll.next_time() is None
