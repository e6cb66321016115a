"""The replies of the scripts that know the consumer line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwayd.domain.errors import HeadwayError, PlaceLost, PollTooSoon
from headwayd.domain.model import Policy
from headwayd.domain.standing import Footing, Footings
from headwayd.engine.ports import GetStep, Wait
from headwayd.store import replies, watch_replies
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


_GET_SETTLED_AT = 17


def get_step(reply: Sequence[Any], leases: Sequence[str], *, randoms: bytes = b"") -> GetStep:
    """The reply of get.lua, from its status on; `leases` are those that it settled, `randoms` the random parts of the
    new ones if each has its own."""
    base, per_position, longest = (int(value) for value in reply[11:14])
    at = _GET_SETTLED_AT
    return GetStep(
        deliveries=replies.deliveries(reply, at + 2 * len(leases), randoms=randoms),
        settled=[replies.settlement(lease, reply[at + 2 * i], reply[at + 1 + 2 * i]) for i, lease in enumerate(leases)],
        generation=text(reply[2]),
        wait=Wait(text(reply[3]) or Wait.NOTHING.value),
        holder=text(reply[4]),
        at_ms=int(reply[1]),
        number=int(float(reply[7])),
        position=int(reply[8]),
        length=int(reply[9]),
        limit=int(reply[10]),
        polls=Policy(poll_base_ms=base, poll_per_position_ms=per_position, poll_max_ms=longest) if base else Policy(),
        was_dropped=int(reply[14]) == 1,
        left=int(reply[15]),
    )


def footings(reply: Sequence[Any]) -> Footings:
    """The reply of stands.lua, from its status on."""
    rows = reply[1 + watch_replies.NUMBERS :]
    return Footings(
        numbers=watch_replies.line_numbers(reply[1 : 1 + watch_replies.NUMBERS]),
        footings=[
            Footing(position=int(rows[i]), number=int(float(rows[i + 1])), owned=int(rows[i + 2]))
            for i in range(0, len(rows), 3)
        ],
    )
