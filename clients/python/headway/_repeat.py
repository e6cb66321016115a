"""Makes a call again whose answer was lost or that nothing came of, within the time its caller gave."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import grpc

from headway._backoff import backoff_seconds
from headway._errors import DeadlineExceeded, HeadwayError, Unavailable
from headway._spans import whole_milliseconds

if TYPE_CHECKING:
    from headway._channel import Connection

_Response = TypeVar("_Response")

_MOST_TRIES = 5
# Of the time that a call gets beyond its wait one try gets this share, so that an answer that never comes leaves time
# for another. The service answers within 2 s after a wait.
_SHARE_OF_A_TRY = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Generic[_Response]):
    """An answer, and whether an earlier try may have taken effect: then it tells of that one, or of what is left."""

    response: _Response
    is_again: bool


async def call_again(
    connection: "Connection",
    rpc: Any,
    request: Any,
    *,
    wait: timedelta | None = None,
    is_idempotent: bool = True,
    on_lost: Callable[[], None] | None = None,
) -> Answer[Any]:
    """Makes a call, and makes it again while it fails in passing: five tries at most, within `wait` + `call_timeout`.

    One that is not idempotent is repeated only if nothing happened. `wait` is the request's own and is counted down;
    `on_lost` may change the request once a try may have taken effect. Raises HeadwayError: that of the last try, or of
    the one whose outcome is unknown if the last one only was not served.
    """
    clock = asyncio.get_running_loop().time
    grace = connection.call_timeout.total_seconds()
    wait_until = clock() + (max(0.0, wait.total_seconds()) if wait is not None else 0.0)
    deadline = wait_until + grace
    failures = 0
    lost: HeadwayError | None = None
    while True:
        share = _SHARE_OF_A_TRY if is_idempotent else 1.0
        until = min(deadline, max(clock(), wait_until) + grace * share)
        try:
            response = await connection.call(rpc, request, timeout=until - clock())
        except HeadwayError as error:
            failures += 1
            pause = backoff_seconds(failures, error.retry_after)
            is_over = failures >= _MOST_TRIES or clock() + pause >= deadline
            if is_over or not (_is_passing(error) and (is_idempotent or not error.is_outcome_unknown)):
                if lost is not None and _is_passing(error):
                    raise lost from error
                raise
            if error.is_outcome_unknown:
                lost = error
                if on_lost is not None:
                    on_lost()
        else:
            return Answer(response=response, is_again=lost is not None)
        await asyncio.sleep(pause)
        if wait is not None:
            request.wait.CopyFrom(whole_milliseconds(timedelta(seconds=max(0.0, wait_until - clock()))))


def _is_passing(error: HeadwayError) -> bool:
    """It was not served, or no answer came; but for a cancellation, which is somebody's will."""
    if isinstance(error, Unavailable | DeadlineExceeded):
        return True
    return error.is_outcome_unknown and error.code is not grpc.StatusCode.CANCELLED
