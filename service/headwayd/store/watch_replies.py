"""Turns what scripts tell those who watch into the domain's values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from headwayd.domain.model import Outcome, Policy
from headwayd.domain.places import (
    Event,
    Feed,
    Happening,
    LineNumbers,
    MessagePlace,
    Places,
    Shape,
    Whereabouts,
)
from headwayd.store.replies import OUTCOMES, progress_of, text

NUMBERS = 19
_NUMBERS_AT = 4  # behind what a policy says of polls
_ANY_POLICY = Policy()


@lru_cache(maxsize=256)  # most answers tell the same, and a policy has many fields
def polls(base_ms: int, per_position_ms: int, longest_ms: int) -> Policy:
    """The poll part of a policy; any, if it was not told."""
    if not base_ms:
        return _ANY_POLICY
    return Policy(poll_base_ms=base_ms, poll_per_position_ms=per_position_ms, poll_max_ms=longest_ms)


def line_numbers(values: Sequence[Any]) -> LineNumbers:
    """The list of lua/include/numbers.lua."""
    at_ms, logged, head, tail, length, leased, limit, departures, acked, consumers, producers = (
        int(value) for value in values[1:12]
    )
    return LineNumbers(
        generation=text(values[0]),
        at_ms=at_ms,
        logged=logged,
        head=head,
        tail=tail,
        length=length,
        leased=leased,
        limit=limit,
        departures=departures,
        acked=acked,
        consumers_waiting=consumers,
        producers_waiting=producers,
        is_paused=int(values[12]) == 1,
        is_closed=int(values[13]) == 1,
        delayed=int(values[14]),
        put_rate=float(values[15]),
        ack_rate=float(values[16]),
        consumers_ready=int(values[17]),
        consumers_awaited=int(values[18]),
    )


def places(reply: Sequence[Any], message_ids: Sequence[str]) -> Places:
    """The reply of places.lua, from its status on."""
    at = _NUMBERS_AT + NUMBERS
    numbers = line_numbers(reply[_NUMBERS_AT:at])
    has_shape, count = text(reply[at]) == "1", int(reply[at + 1])
    returned = [int(order) for order in reply[at + 2 : at + 2 + count]]
    at += 2 + count
    count = int(reply[at])
    gaps = [int(ticket) for ticket in reply[at + 1 : at + 1 + count]]
    at += 1 + count
    return Places(
        polls=polls(*map(int, reply[1:_NUMBERS_AT])),
        numbers=numbers,
        places=[_place(name, reply[at + 9 * i : at + 9 * i + 9]) for i, name in enumerate(message_ids)],
        shape=Shape(returned=returned, gaps=gaps) if has_shape else None,
    )


def _place(name: str, row: Sequence[Any]) -> MessagePlace:
    state, ref, position, attempt, progress, mark, result, cause, due = row
    is_dead = state == b"dead"
    outcome = Outcome.DEAD if is_dead else OUTCOMES.get(text(mark), Outcome.UNKNOWN) if mark else None
    return MessagePlace(
        id=name,
        state=Whereabouts.FINISHED if is_dead else Whereabouts(text(state)),
        ref=text(ref),
        position=int(position),
        attempt=int(attempt),
        progress=progress_of(progress),
        outcome=outcome,
        result=result,
        cause=text(cause),
        due_at_ms=int(due),
    )


def feed(reply: Sequence[Any]) -> Feed:
    """The reply of feed.lua, from its status on."""
    at = _NUMBERS_AT + NUMBERS
    numbers = line_numbers(reply[_NUMBERS_AT:at])
    events = None if text(reply[at]) == "0" else [_event(entry) for entry in reply[at + 1 :]]
    return Feed(polls=polls(*map(int, reply[1:_NUMBERS_AT])), numbers=numbers, events=events)


def _event(entry: bytes) -> Event:
    """One entry of x:log: a letter, a reference, and what belongs to it."""
    letter, _, rest = entry.partition(b" ")
    told, _, more = rest.partition(b" ")
    what, ref = Happening(text(letter)), text(told)
    match what:
        case Happening.LEASED:
            return Event(what=what, ref=ref, attempt=int(more))
        case Happening.BACK:
            return Event(what=what, ref=ref, order=int(more or ref))
        case Happening.DELAYED:
            to, _, due = more.partition(b" ")
            return Event(what=what, ref=ref, to=text(to), due_at_ms=int(due))
        case Happening.JOINED:
            return Event(what=what, ref=ref, to=text(more))
        case Happening.ENDED:
            mark, _, result = more.partition(b" ")
            outcome = OUTCOMES.get(text(mark), Outcome.UNKNOWN)
            return Event(what=what, ref=ref, outcome=outcome, result=result)
        case Happening.DEAD:
            return Event(what=what, ref=ref, outcome=Outcome.DEAD, cause=text(more))
        case Happening.PROGRESS:
            return Event(what=what, ref=ref, progress=progress_of(more))
    return Event(what=what, ref=ref)
