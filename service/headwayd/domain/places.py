"""Where messages and those who wait stand, and what moves them: the values that watching is made of.

A message is kept under a reference: its ticket in decimal while it waits, is leased or is dead, or "d" and a sequence
number while it is delayed. References change (a delayed message gets a ticket when it joins the line), ids do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from headwayd.domain.model import Outcome, Policy

# Whoever stands among the first so many is told every step (P-WATCH-3).
NEAR = 20


class Whereabouts(StrEnum):
    """The state of a message."""

    WAITING = "waiting"
    LEASED = "leased"
    DELAYED = "delayed"
    FINISHED = "finished"
    UNKNOWN = "unknown"  # no such message is known


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the work on a message has come: 0.0 to 1.0, and a note for people."""

    fraction: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedMessage:
    """A message that is being worked on. `consumer` is "" and `leased_at_ms` None if nobody knows."""

    id: str
    ticket: int
    consumer: str
    attempt: int
    leased_at_ms: int | None
    lease_expires_at_ms: int
    progress: Progress | None
    put_at_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePlace:
    """Where one message is at one instant. `position` is 0 unless it waits; `attempt` is that of the lease."""

    id: str
    state: Whereabouts
    ref: str = ""
    position: int = 0
    attempt: int = 0
    progress: Progress | None = None
    outcome: Outcome | None = None
    result: bytes = b""
    cause: str = ""
    due_at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LineNumbers:
    """A queue's line at one instant. Tickets up to `head` have left it from the front, except those that came back;
    `tail` is the last that joined. `departures` counts what ever left the line at its head, repeated deliveries among
    it. Of the consumers that wait, `consumers_ready` take what comes at once: nothing is held back before them for a
    place that is kept between polls. `consumers_awaited` are such places, up to their poll_max. Where places are kept,
    both are counted among the first in the consumer line only."""

    generation: str
    at_ms: int
    logged: int  # how many events were logged so far
    head: int
    tail: int
    length: int
    leased: int
    limit: int
    departures: int
    acked: int
    consumers_waiting: int
    producers_waiting: int
    is_paused: bool
    is_closed: bool
    delayed: int
    put_rate: float  # per second, decaying over about a minute
    ack_rate: float
    consumers_ready: int
    consumers_awaited: int


# Messages that came back stand at the head in blocks, the one begun last first, and in a block by ticket. They are
# sorted by a number of each: its ticket, less this for each block behind its own (lua/include/blocks.lua).
_BLOCK = 2**43


def ticket_of_order(order: int) -> int:
    """Whose number that is."""
    return order if order >= 0 else order % _BLOCK


MOST_TICKETS = 20_000  # of a shape: a larger one is neither told nor kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Which tickets stand in line at one instant: at the head those that came back, of which `returned` has what they
    are sorted by (in order), then all from head + 1 to tail that are not in `gaps` (in order)."""

    returned: Sequence[int] = ()
    gaps: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where some messages are, and the whole line, all at one instant. `polls` has the policy's poll part only. `shape`
    is None if it was not asked for, or is too large to be told: then only asking tells positions."""

    polls: Policy
    numbers: LineNumbers
    places: Sequence[MessagePlace]
    shape: Shape | None = None


class Happening(StrEnum):
    """What can happen to a message, in one letter each as the scripts log it."""

    LEASED = "L"  # it left the line at its head; `attempt`
    BACK = "B"  # it came back to the head, where it is sorted by `order`
    DELAYED = "D"  # it left the line or its lease, and is kept under `to` until `due_at_ms`
    JOINED = "J"  # it is kept under `to` from now on, at the tail: fell due, was replaced while leased, or was redriven
    ENDED = "E"  # `outcome`, and `result` if it is done
    DEAD = "X"  # `cause` is its last error
    PROGRESS = "P"  # `progress`
    REPLACED = "R"  # another body stands in its place


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to the message kept under `ref` then. If it waited before, and does not any more, its
    ticket is no more in line: taken off `returned`, or a gap if it lies behind the head."""

    what: Happening
    ref: str
    to: str = ""
    attempt: int = 0
    order: int = 0
    due_at_ms: int = 0
    outcome: Outcome | None = None
    result: bytes = b""
    cause: str = ""
    progress: Progress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """What happened to a queue since a known number of events. `events` is None if some are no longer known: then ask
    for places anew. A ticket that the head has passed without an event was taken by a foreign client; one that had come
    back before has an event of its own then. `polls` has the policy's poll part only."""

    polls: Policy
    numbers: LineNumbers
    events: Sequence[Event] | None = field(default=())
