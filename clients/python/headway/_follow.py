"""Follows a stream of answers for as long as that takes: opens a new one wherever one breaks."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc

from headway._backoff import Outage, is_passing
from headway._channel import Connection
from headway._errors import HeadwayError, Unavailable


async def follow(
    connection: Connection, rpc: Any, make_request: Callable[[], Awaitable[Any]], *, queue_name: str
) -> AsyncGenerator[Any, None]:
    """Yields the answers of a stream, and of the next one when it breaks; `make_request` is called for each.

    A request that is None ends it.

    Until the first answer of all it tries for as long as a call may take, and then raises what went wrong; later it
    goes on for as long as the service is away, and says so in the log. A stream whose first answer does not come in
    that time is broken, too. Raises what would not go away by itself.
    """
    clock = asyncio.get_running_loop().time
    give_up_at: float | None = clock() + connection.call_timeout.total_seconds()
    outage = Outage(queue_name)
    failure: HeadwayError | None = None
    while (request := await make_request()) is not None:
        if failure is not None:
            pause = outage.pause_seconds(failure)
            if give_up_at is not None and clock() + pause >= give_up_at:
                raise failure
            await asyncio.sleep(pause)
        failure = _broken_off()
        try:
            answers = connection.stream(rpc, request, first_within=connection.call_timeout)
            async with aclosing(answers):
                async for answer in answers:
                    give_up_at = None
                    outage.over()
                    yield answer
        except HeadwayError as error:
            if not is_passing(error):
                raise
            failure = error


def _broken_off() -> HeadwayError:
    return Unavailable("the stream ended before its last message", code=grpc.StatusCode.UNAVAILABLE)
