"""What calls are told whose request does not come, and what bounds them: the calls that run leave them room."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from headwayd.domain.errors import HeadwayError, Overloaded, ShuttingDown
from headwayd.rpc.core.awaited import Awaited, Why
from headwayd.rpc.core.known import Refused
from headwayd.rpc.edge import OWN_PACKAGE, Gate
from headwayd.rpc.status import STATUS_CODES, Refusal

if TYPE_CHECKING:
    from headwayd.engine.counting.counts import Counts

_ERRORS: dict[Why, HeadwayError] = {
    Why.TOO_LATE: Overloaded("the request of this call did not come", metadata={"limit": "write_timeout"}),
    Why.TOO_MANY: Overloaded(
        "the service waits for the requests of as many calls as it can take", metadata={"limit": "max_running_calls"}
    ),
    Why.GOING_DOWN: ShuttingDown("this service process is going down"),
}


def awaited_beside(gate: Gate, *, timeout: timedelta, counts: Counts | None) -> Awaited:
    """Of a server whose calls run behind `gate`."""
    refusals = {why: Refusal(error).unread for why, error in _ERRORS.items()}

    def told(path: str, why: Why) -> Refused:
        if counts is not None and path.startswith(OWN_PACKAGE):
            counts.note_call(path.rpartition("/")[2], STATUS_CODES[_ERRORS[why].reason].name)
        return refusals[why]

    return Awaited(room=lambda: gate.left_to_run, timeout_s=timeout.total_seconds(), told=told)
