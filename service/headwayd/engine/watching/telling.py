"""How old a place may be when it is told, and when it is another one that is worth telling: of messages, producers and
consumers alike. Among the first `NEAR` every other place is; farther back it must have changed by a tenth."""

from __future__ import annotations

from headwayd.domain.hints import PollHints
from headwayd.domain.places import NEAR

TRUE_FOR_S = 0.7  # a place is told within a second of its instant; the rest is for its way
_STEPS = 10  # a step is this part of a position


def step_below(position: int) -> int:
    """The next position on the way to the head that is told."""
    return max(position - -(-position // _STEPS), NEAR)


def step_above(position: int) -> int:
    """The next position away from the head that is told."""
    return position + -(-position // _STEPS)


def due_at(told: int, position: int, *, told_at: float, hints: PollHints) -> float:
    """From when on a place is to be told if `told` was the last, at `told_at` in seconds and with these hints: at once
    among the first `NEAR`, after poll_min if it has changed by a step, and after poll_max whatever it is."""
    must_at = told_at + hints.poll_max_ms / 1_000
    if position == told:
        return must_at
    if min(told, position) <= NEAR:
        return float("-inf")
    is_a_step = abs(position - told) * _STEPS >= told
    return min(told_at + hints.poll_min_ms / 1_000, must_at) if is_a_step else must_at
