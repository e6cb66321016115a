"""That a server's clock has gone forward is said where it is certain, and once."""

from __future__ import annotations

import pytest

from headwayd.store.clocks import ServerClock


def hear(clock: ServerClock, *, ahead_s: float, at: float, took_s: float = 0.0, read_after_s: float = 0.0) -> bool:
    """One question and its answer; the server read its clock so long after the question."""
    told_s = at + read_after_s + ahead_s
    clock.hear(round(told_s * 1_000_000), asked_at=at, heard_at=at + took_s)
    return clock.has_gone_forward()


def test_it_is_said_once_and_again_when_it_happens_again() -> None:
    clock, aheads_s = ServerClock(), (50.0, 50.0, 50.2, 50.3, 50.3, 110.0, 110.0)
    said = [hear(clock, ahead_s=ahead_s, at=10.0 * n) for n, ahead_s in enumerate(aheads_s)]
    assert said == [False, False, False, True, False, True, False]


def test_what_goes_forward_little_by_little_is_added_up() -> None:
    clock = ServerClock()
    said = [hear(clock, ahead_s=n / 10, at=10.0 * n) for n in range(10)]
    assert said == [False, False, False, True, False, False, True, False, False, True]


def test_what_went_back_and_comes_forward_again_is_said() -> None:
    clock = ServerClock()
    said = [hear(clock, ahead_s=ahead_s, at=10.0 * n) for n, ahead_s in enumerate((50.0, -10.0, 50.0, 50.0))]
    assert said == [False, False, True, False]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_slow_answers_are_not_taken_for_it(share: float) -> None:
    clock = ServerClock()
    for n, took_s in enumerate((0.0, 5.0, 0.0, 0.3, 2.0, 0.0, 1.0, 0.0)):
        assert not hear(clock, ahead_s=50.0, at=10.0 * n, took_s=took_s, read_after_s=share * took_s)
