"""Blocked producers: Puts that stand in the producer line until there is room, found by the name of their producer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwayd.domain.hints import PollHints
from headwayd.domain.model import Policy
from headwayd.domain.places import LineNumbers
from headwayd.domain.standing import ToldOver


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedPut:
    """A Put in the producer line as the store knows it. `producer` is "" if its caller gave no name, `generation` the
    life of the queue in which it began to wait."""

    waiter: str
    number: int
    producer: str
    generation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedPlaces:
    """Where the Puts of some producers stand, in the order of the question, and the queue, all at one instant: of each
    producer the one that has waited longest; 0 = none waits. `polls` has the policy's poll part only."""

    numbers: LineNumbers
    polls: Policy
    positions: Sequence[int]


@dataclass(frozen=True, slots=True)
class ToldBlocked:
    """Where a producer's Put stands at `at_ms`: its exact rank among the `length` that stand there, 0 if none does."""

    at_ms: int
    position: int
    length: int
    limit: int
    hints: PollHints


ToldProducer = ToldBlocked | ToldOver
