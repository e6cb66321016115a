"""The replies of the scripts that know the consumer line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwayd.domain.errors import HeadwayError, PlaceLost, PollTooSoon
from headwayd.domain.leases import all_leases
from headwayd.domain.model import Delivery, GetOrder, Settlement
from headwayd.domain.standing import Footing, Footings
from headwayd.engine.ports import GetStep, Wait
from headwayd.store import delivery_replies, replies, tokens, watch_replies
from headwayd.store.replies import text
from headwayd.store.status import Status


def not_standing(reply: Sequence[Any], queue: str) -> HeadwayError | None:
    """The error for a status that says why somebody cannot come back to its place; None for every other."""
    metadata = {"queue": queue}
    match text(reply[0]):
        case Status.PLACE_LOST:
            return PlaceLost("the place in line is lost", metadata=metadata)
        case Status.POLL_TOO_SOON:
            return PollTooSoon("this poll came too soon", retry_after_ms=int(reply[1]), metadata=metadata)
    return None


_GET_EACH_AT, _GET_ENDED_AT, _GET_SETTLED_AT = 16, 17, 18
_NEAR_AT, _NUMBERS_AT = 4, 5
_WAITS = {one.value.encode(): one for one in Wait} | {b"": Wait.NOTHING}


def get_step(reply: Sequence[Any], leases: Sequence[str]) -> GetStep:
    """The reply of get.lua, from its status on; `leases` are those that it settled."""
    settled, start = replies.acked(leases, reply, _GET_SETTLED_AT)
    return _step(reply, delivery_replies.deliveries(reply, start), settled)


def get_steps(reply: Sequence[Any], orders: Sequence[GetOrder], randoms: bytes) -> list[GetStep]:
    """The same for several who asked: each one's own. `randoms` has the random parts of their new leases."""
    leases = all_leases([order.ack for order in orders])
    settled, start = replies.acked(leases, reply, _GET_SETTLED_AT)
    secrets = [randoms[at : at + tokens.RANDOM_BYTES] for at in range(0, len(randoms), tokens.RANDOM_BYTES)]
    own, at = _step(reply, (), ()), 0
    count, *others = map(int, reply[_GET_EACH_AT].split())
    numbers, positions = [own.number, *others[::3]], [own.position, *others[1::3]]
    shares = zip([count, *others[2::3]], secrets, strict=True)
    steps: list[GetStep] = []
    deliveries = delivery_replies.deliveries_of_each(reply, start, shares)
    for order, given, number, position in zip(orders, deliveries, numbers, positions, strict=True):
        part = settled[at : at + len(order.ack)]
        at += len(order.ack)
        wait = Wait.NOTHING if given else own.wait
        steps.append(own._replace(deliveries=given, settled=part, wait=wait, number=number, position=position))
    return steps


def _step(reply: Sequence[Any], given: Sequence[Delivery], settled: Sequence[Settlement]) -> GetStep:
    return GetStep(
        deliveries=given,
        settled=settled,
        generation=text(reply[2]),
        wait=_WAITS[reply[3]],
        holder=text(reply[4]),
        at_ms=int(reply[1]),
        number=int(float(reply[7])),
        position=int(reply[8]),
        length=int(reply[9]),
        limit=int(reply[10]),
        polls=watch_replies.polls(*reply[11:14]),
        was_dropped=int(reply[14]) == 1,
        left=int(reply[15]),
        ended=int(reply[_GET_ENDED_AT]),
    )


def footings(reply: Sequence[Any]) -> Footings:
    """The reply of stands.lua, from its status on."""
    rows_at = _NUMBERS_AT + watch_replies.NUMBERS
    rows = reply[rows_at:]
    return Footings(
        polls=watch_replies.polls(*map(int, reply[1:_NEAR_AT])),
        near_number=int(float(reply[_NEAR_AT])) if reply[_NEAR_AT] else None,
        numbers=watch_replies.line_numbers(reply[_NUMBERS_AT:rows_at]),
        footings=[
            Footing(position=int(rows[i]), number=int(float(rows[i + 1])), owned=int(rows[i + 2]))
            for i in range(0, len(rows), 3)
        ],
    )
