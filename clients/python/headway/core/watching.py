"""Watches: where messages stand until their end; goes on wherever a stream breaks."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Any

from headway.core.connecting import OF_CALLERS, Connection, pause_seconds
from headway.core.errors import HeadwayError, Unavailable
from headway.v1 import queue_service_pb2 as pb


async def follow(connection: Connection, queue_name: str, rpc: Any, ask: Callable[[], Any]) -> AsyncGenerator[Any]:
    """Yields the answers of a stream, and of the next one when it breaks; `ask` is awaited for the request of each.

    A request that is None ends it. What has no newer number than the answer before it is passed over.

    Until the first answer of all it tries for as long as a call may take, and then raises what went wrong; later it
    goes on for as long as the service is away, and says so in the log. A stream whose first answer does not come in
    that time is broken, too, and so is one that was served until its token expired. Raises what would not go away by
    itself.
    """
    clock, failures = asyncio.get_running_loop().time, 0
    give_up_at: float | None = clock() + connection.call_seconds
    failure: HeadwayError | None = None
    while (request := await ask()) is not None:
        if failure is not None:
            pause = pause_seconds(queue_name, failures := failures + 1, failure)
            if give_up_at is not None and clock() + pause >= give_up_at:
                raise failure
            await asyncio.sleep(pause)
        failure, sequence = Unavailable("the stream ended before its last message"), 0
        try:
            async with aclosing(connection.stream(rpc, request, first_within=connection.call_seconds)) as answers:
                async for answer in answers:
                    give_up_at, failures = None, 0
                    if not (number := getattr(answer, "sequence", 0)) or number > sequence:  # WatchQueue has none
                        sequence = number
                        yield answer
        except HeadwayError as error:
            # Of callers: what this stream was served until then it may be again, with the token of now.
            if not (error.is_passing or (give_up_at is None and not failures and isinstance(error, OF_CALLERS))):
                raise
            failure = error


async def watch(
    connection: Connection, queue_name: str, ids: Iterable[str], *, attended: bool = False
) -> AsyncGenerator[pb.WatchPositionResponse]:
    """Yields where messages are, each at once and then whenever that changes, until the last is finished.

    It asks anew when the stream breaks, for as long as the service is away, and never goes back in time. A message that
    is not known, or not remembered any more, is finished with OUTCOME_UNSPECIFIED. At most 10,000 ids.

    attended: whoever stops watching withdraws those that still wait; a connection that breaks does so, too.

    Leaving the loop ends the watch (`contextlib.aclosing` makes that happen at once). Raises QueueNotFound.
    """
    left = dict.fromkeys(ids, 0)  # when the last thing was said of each that is not finished, in nanoseconds

    async def request() -> pb.WatchPositionRequest | None:
        messages = pb.MessageIds(ids=left, attended=attended)
        return pb.WatchPositionRequest(queue=queue_name, messages=messages) if left else None

    async with aclosing(follow(connection, queue_name, connection.queues.WatchPosition, request)) as answers:
        async for answer in answers:
            event, as_of = answer.WhichOneof("event") or "", answer.as_of.ToNanoseconds()
            message_id = getattr(getattr(answer, event, None), "id", "")
            if message_id in left and (event == "finished" or as_of >= left[message_id]):
                left[message_id] = as_of
                if event == "finished":
                    del left[message_id]
                yield answer
