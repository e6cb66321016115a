"""Watches: where messages stand until their end; goes on wherever a stream breaks."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Any

from headway.core.connecting import OF_CALLERS, Connection, pause_seconds
from headway.core.errors import HeadwayError, Unavailable
from headway.v1 import queue_service_pb2 as pb

# So much older may be what a new stream says first than what the last one said: it is passed over. What is older still
# is news, of a store whose clock went back. On one stream, whatever its clock does, the later is the newer.
OVERTAKEN_NS = 2_000_000_000


async def follow(connection: Connection, queue_name: str, rpc: Any, ask: Callable[[], Any]) -> AsyncGenerator[Any]:
    """Yields the answers of a stream, and of the next one when it breaks; `ask` is awaited for the request of each.

    A request that is None ends it. What has no newer number than the answer before it is passed over.

    Until the first answer of all it tries for as long as a call may take, and then raises what went wrong; later it
    goes on for as long as the service is away, and says so in the log. A stream whose first answer does not come in
    that time is broken, too, and so is one that was served until its token expired. Raises what would not go away by
    itself.
    """
    give_up_at, failures = asyncio.get_running_loop().time() + connection.call_seconds, 0
    failure: HeadwayError | None = None
    while (request := await ask()) is not None:
        if failure is not None:
            pause = pause_seconds(queue_name, failures := failures + 1, failure)
            if asyncio.get_running_loop().time() + pause >= give_up_at:
                raise failure
            await asyncio.sleep(pause)
        failure, sequence = Unavailable("the stream ended before its last message"), -1  # nothing was answered yet
        try:
            async with aclosing(connection.stream(rpc, request, first_within=connection.call_seconds)) as answers:
                async for answer in answers:
                    give_up_at, failures = float("inf"), 0
                    if not (number := getattr(answer, "sequence", 0)) or number > sequence:  # WatchQueue has none
                        sequence = number
                        yield answer
        except HeadwayError as error:
            # Of callers: what this stream was served until then it may be again, with the token of now.
            if not (error.is_passing or (sequence >= 0 and isinstance(error, OF_CALLERS))):
                raise
            failure = error


async def watch(
    connection: Connection, queue_name: str, ids: Iterable[str], *, attended: bool = False
) -> AsyncGenerator[pb.WatchPositionResponse]:
    """Yields where messages are, each at once and then whenever that changes, until the last is finished.

    It asks anew when the stream breaks, for as long as the service is away, and then goes back in time only where the
    store's clock did. A message that is not known, or not remembered any more, is finished with OUTCOME_UNSPECIFIED. At
    most 10,000 ids.

    attended: whoever stops watching withdraws those that still wait; a connection that breaks does so, too.

    Leaving the loop ends the watch (`contextlib.aclosing` makes that happen at once). Raises QueueNotFound.
    """
    # When the last thing was said of each that is not finished, in nanoseconds; and when before this stream.
    left, before = dict.fromkeys(ids, 0), dict[str, int]()

    async def request() -> pb.WatchPositionRequest | None:
        before.update(left)
        messages = pb.MessageIds(ids=left, attended=attended)
        return pb.WatchPositionRequest(queue=queue_name, messages=messages) if left else None

    async with aclosing(follow(connection, queue_name, connection.queues.WatchPosition, request)) as answers:
        async for answer in answers:
            event, as_of = answer.WhichOneof("event") or "", answer.as_of.ToNanoseconds()
            message_id = getattr(getattr(answer, event, None), "id", "")
            if message_id in left and (event == "finished" or not 0 < before[message_id] - as_of <= OVERTAKEN_NS):
                left[message_id] = as_of
                if event == "finished":
                    del left[message_id]
                yield answer
