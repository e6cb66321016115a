"""Watches: where messages stand until their end, where a blocked producer does, and a queue's numbers."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime, timedelta

from headway._newest import Newest
from headway._operations import Operations
from headway._places import (
    Blocked,
    Delayed,
    Finished,
    Leased,
    Outcome,
    QueueNumbers,
    Update,
    Waiting,
    read_blocked,
    read_eta,
    read_instant,
    read_update,
    subject_of,
)
from headway.core.connecting import span
from headway.core.errors import MessageNotFound, QueueNotFound
from headway.core.watching import follow, watch
from headway.v1 import queue_service_pb2 as pb


class Watching(Operations):
    """The watchers' part of `Queue`."""

    async def watch(self, *ids: str, attended: bool = False) -> AsyncGenerator[Update, None]:
        """Yields where messages are, each at once and then whenever that changes, until the last is finished.

        attended: whoever stops watching withdraws those that still wait; a connection that breaks does so, too.

        It asks anew when the stream breaks, for as long as the service is away, and then tells how a message ended as
        long as that is remembered. What it yields of a message goes back in time only where the store's clock does. A
        message that is not known is Finished with the outcome UNKNOWN. At most 10,000 ids. Leaving the loop ends the
        watch (`contextlib.aclosing` makes that happen at once). Raises QueueNotFound.
        """
        last: dict[str, Waiting | Leased | Delayed | None] = dict.fromkeys(ids)  # of those that are not finished
        as_of: datetime | None = None  # of what was said last; None: nothing was yet
        sequence = 0
        unheard = set[str]()  # those of which this stream has said nothing yet, and one before it has
        async with aclosing(watch(self._connection, self.name, ids, attended=attended)) as answers:
            try:
                async for answer in answers:
                    if answer.sequence <= sequence:  # it is another stream's
                        unheard = set(last)
                    sequence, message_id = answer.sequence, subject_of(answer)
                    update = read_update(answer, last[message_id] if message_id in unheard else None)
                    unheard.discard(message_id)
                    if update is None:
                        continue
                    as_of = update.as_of or as_of
                    if isinstance(update, Finished):
                        del last[update.id]
                    else:
                        last[update.id] = update
                    yield update
            except QueueNotFound:
                if as_of is None:
                    raise
                for message_id in last:  # the queue was there and is no more
                    yield Finished(id=message_id, as_of=as_of, outcome=Outcome.DELETED)

    async def wait_for(self, message_id: str, *, attended: bool = False) -> Finished:
        """How a message ended: its outcome, its result if it is done, its last error if it is dead.

        Waits as long as that takes; asyncio.timeout bounds it. Whoever stops waiting withdraws the message if it is
        `attended` and still waits. Raises MessageNotFound if it is not known or not remembered any more, and
        QueueNotFound.
        """
        async with aclosing(self.watch(message_id, attended=attended)) as updates:
            async for update in updates:
                if isinstance(update, Finished) and update.outcome is not Outcome.UNKNOWN:
                    return update
        raise MessageNotFound(f"no message {message_id!r} is known", metadata={"queue": self.name, "id": message_id})

    async def watch_blocked(self, producer: str) -> AsyncGenerator[Blocked, None]:
        """Yields where a producer stands in the line for room: its put that has waited longest, by whichever client.

        The producer is named as in `put(…, producer=…)`. Tells at once and then whenever that changes, position 0 while
        none of its puts waits. It asks anew when the stream breaks, and goes back in time only where the store's clock
        does. Ends when the queue is closed or deleted; leaving the loop ends it, too. Raises QueueNotFound,
        FieldInvalid.
        """
        request = pb.WatchPositionRequest(queue=self.name, blocked=pb.Blocked(producer=producer))
        newest = Newest()

        async def again() -> pb.WatchPositionRequest:
            newest.begin()
            return request

        rpc = self._connection.queues.WatchPosition
        async with aclosing(follow(self._connection, self.name, rpc, again)) as answers:
            try:
                async for answer in answers:
                    if answer.HasField("finished"):
                        return
                    if newest.is_news(answer.as_of):
                        yield read_blocked(answer)
            except QueueNotFound:
                if not newest.is_known:
                    raise

    async def watch_queue(self, *, interval: timedelta | None = None) -> AsyncGenerator[QueueNumbers, None]:
        """Yields the queue's numbers, at once and then when they changed, at most once every `interval` (default 1 s).

        It asks anew when the stream breaks, and goes back in time only where the store's clock does. Leaving the loop
        ends it. Raises QueueNotFound, and QueueDeleted when the queue is deleted.
        """
        request = pb.WatchQueueRequest(queue=self.name, interval=span(interval))
        newest = Newest()

        async def again() -> pb.WatchQueueRequest:
            newest.begin()
            return request

        rpc = self._connection.queues.WatchQueue
        async with aclosing(follow(self._connection, self.name, rpc, again)) as answers:
            async for answer in answers:
                if newest.is_news(answer.as_of):
                    yield QueueNumbers(queue=answer.queue, as_of=read_instant(answer.as_of), eta=read_eta(answer.eta))
