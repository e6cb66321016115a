"""How old a place may be when it is told, and when it is another one that is worth telling: of messages, producers and
consumers alike. Among the first `NEAR` every other place is; farther back it must have changed by a tenth."""

from __future__ import annotations

from headwayd.domain.places import NEAR

TRUE_FOR_S = 0.7  # a place is told within a second of its instant; the rest is for its way
_STEPS = 10  # a step is this part of a position


def step_below(position: int) -> int:
    """The next position on the way to the head that is told."""
    return max(position - -(-position // _STEPS), NEAR)


def step_above(position: int) -> int:
    """The next position away from the head that is told."""
    return position + -(-position // _STEPS)


def is_a_step(told: int, position: int) -> bool:
    """Whether a position is that far from the one told last; neither is among the first `NEAR`."""
    return abs(position - told) * _STEPS >= told
