"""Standing in the consumer line: what is asked for, what the store knows of it, and what those who stand are told.

Whoever waits for something to lease stands in one line per queue, over all processes. It is a *waiter* while it is
there, on a stream or in a Get; between two polls, or for the policy's `place_grace` after a stream broke, only its
*place* is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headwayd.domain.hints import PollHints
from headwayd.domain.model import Delivery, Policy, Settlement
from headwayd.domain.places import LineNumbers
from headwayd.domain.watching import Eta

# Places kept between calls begin with this, waiters' names never do.
PLACE_MARK = "@"


class Waiter(NamedTuple):
    """Someone in the consumer line as the store knows it. `number` is its number there, 0 before it has one, `place`
    the kept place that it comes back to, `generation` the life of the queue in which it began to wait, once that is
    known. `owns_leases`: what it is given belongs to its stream; `keeps_standing`: when that is settled it goes on
    before all others."""

    name: str
    number: int = 0
    place: str = ""
    generation: str = ""
    owns_leases: bool = False
    keeps_standing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A place in the consumer line, and how often it is worth asking. `position` is the 1-based rank among the `length`
    that stand there."""

    place: str
    position: int
    length: int
    limit: int
    hints: PollHints
    eta: Eta | None = None


class GetOutcome(NamedTuple):
    """What a Get gave: deliveries from the head on, one settlement per lease of `ack`, and, if there was nothing to
    lease and a place was asked for, that."""

    deliveries: Sequence[Delivery] = ()
    settled: Sequence[Settlement] = ()
    standing: Standing | None = None


@dataclass(frozen=True, slots=True)
class Footing:
    """How one waiter stands. `position` 0: it does not stand in line; `owned`: how many leases its stream owns."""

    position: int
    number: int
    owned: int


@dataclass(frozen=True, slots=True)
class Footings:
    """How some waiters of a queue stand, and the queue, all at one instant. `polls` has the policy's poll part only.
    Whoever's number is at most `near_number` stands among the first `NEAR`; None: so do all."""

    polls: Policy
    near_number: int | None
    numbers: LineNumbers
    footings: Sequence[Footing]


@dataclass(frozen=True, slots=True, kw_only=True)
class StandOrder:
    """What a stream that stands in line asks for. `lease_ms` 0 means the queue's policy."""

    queue: str
    consumer: str = ""
    place: str = ""
    lease_ms: int = 0
    max_messages: int = 1
    keeps_standing: bool = False


@dataclass(frozen=True, slots=True)
class ToldPlace:
    """Where the stream stands: its exact rank at `at_ms`."""

    at_ms: int
    standing: Standing
    is_moved_back: bool = False


@dataclass(frozen=True, slots=True)
class ToldTurn:
    """The stream's turn: it owns these leases."""

    at_ms: int
    deliveries: Sequence[Delivery]


@dataclass(frozen=True, slots=True)
class ToldOver:
    """There will never be a turn: the queue was deleted, or it is closed (and nothing is left to lease)."""

    is_deleted: bool


ToldStander = ToldPlace | ToldTurn | ToldOver
