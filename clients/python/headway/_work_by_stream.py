"""Works through a queue on a Consume stream: hands out leases one by one, or runs a handler over them in slots."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from headway._backoff import Outage, is_passing
from headway._consuming import Consumer
from headway._errors import HeadwayError, InvalidArgument, LeaseGone, LeaseStale
from headway._lease import Lease, failure_reason
from headway._work_by_calls import until_room

if TYPE_CHECKING:
    from headway._queue import Queue

_log = logging.getLogger("headway")

_DRAIN_SECONDS = 0.25  # how often a worker that drains looks whether anything is left
_FINAL_ACK_TRIES = 5  # after a stop: how often a finished message's ack is tried before its lease is left to lapse


async def work(
    queue: "Queue", *, concurrency: int, prefetch: int, lease: timedelta | None, consumer: str
) -> AsyncGenerator[Lease, None]:
    """See `Queue.work`. Whoever settles each lease before taking the next is given credit for one; whoever takes more
    is given credit for twice as many, up to `concurrency`."""
    changed = asyncio.Event()
    held: set[Lease] = set()
    credit = 1 + prefetch
    source = Consumer(
        queue, credit=credit, max_bytes=0, lease=lease, consumer=consumer, keeps=False, on_end=changed.set
    )
    source.start()
    try:
        while True:
            await until_room(held, concurrency, changed)
            credit = max(credit, min(concurrency, 2 * len(held)) + prefetch)
            source.give_credit(credit)
            taken = await source.next()
            if taken is None:
                break
            held.add(taken)
            yield taken
    finally:
        await source.leave()
    if source.error is not None:
        raise source.error


class StreamRunner:
    """Runs a handler over a queue in `concurrency` slots, which take what one stream brings and settle on it.

    Acks of messages that are finished at about the same time go together, and the leases that come next come with their
    answer. With a prefetch a slot goes on with the next message while its ack is on the way.
    """

    def __init__(
        self,
        queue: "Queue",
        handler: Callable[[Lease], Awaitable[object]],
        *,
        concurrency: int,
        prefetch: int,
        lease: timedelta | None,
        consumer: str,
        stop: asyncio.Event | None,
        drain: bool,
    ) -> None:
        self._queue = queue
        self._handler = handler
        self._concurrency = concurrency
        self._is_ahead = prefetch > 0
        self._stop = stop
        self._drain = drain
        self._outage = Outage(queue.name)
        self._acking: set[asyncio.Task[None]] = set()
        self._failure: HeadwayError | None = None
        self._is_stopping = False
        self._source = Consumer(
            queue, credit=concurrency + prefetch, max_bytes=0, lease=lease, consumer=consumer, keeps=True
        )

    async def run(self) -> None:
        """See `Queue.run`."""
        self._source.start()
        try:
            async with asyncio.TaskGroup() as group:
                watchers = [group.create_task(self._listen(self._stop))] if self._stop is not None else []
                if self._drain:
                    watchers.append(group.create_task(self._drained()))
                await asyncio.wait([group.create_task(self._slot()) for _ in range(self._concurrency)])
                for each in watchers:
                    each.cancel()
            while self._acking:
                await asyncio.wait(self._acking)
        finally:
            for task in self._acking:
                task.cancel()
            await self._source.close()
        failure = self._failure or self._source.error
        if failure is not None:
            raise failure

    def _begin_stop(self) -> None:
        self._is_stopping = True
        self._source.stop()

    async def _listen(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._begin_stop()

    async def _drained(self) -> None:
        """Stops when nothing waits, is delayed or is leased any more."""
        pause = _DRAIN_SECONDS
        while True:
            await asyncio.sleep(pause)
            pause = _DRAIN_SECONDS
            if not self._source.is_idle:
                continue
            try:
                counts = (await self._queue.describe()).counts
            except HeadwayError as error:
                if not is_passing(error):
                    return  # the stream meets it, too, and says so
                pause = self._outage.pause_seconds(error)
                continue
            self._outage.over()
            if not (counts.length or counts.leased or counts.delayed):
                self._begin_stop()
                return

    async def _slot(self) -> None:
        while (lease := await self._source.next()) is not None:
            try:
                result = await self._handler(lease)  # its lease is kept alive by where it comes from
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    self._begin_stop()  # or what is given back would be leased again at once
                    if not lease.is_settled:
                        await lease.give_back(failed_with=None)
                    raise
                await self._handler_failed(lease, error)
            except Exception as error:  # noqa: BLE001 - the loop's guard: what a handler raises is its message's failure
                await self._handler_failed(lease, error)
            else:
                if not lease.is_settled:
                    await self._finish(lease, result if isinstance(result, bytes) else b"")

    async def _finish(self, lease: Lease, result: bytes) -> None:
        if not self._is_ahead:
            await self._ack(lease, result)
            return
        acking = asyncio.create_task(self._ack(lease, result))
        self._acking.add(acking)
        acking.add_done_callback(self._acking.discard)

    async def _ack(self, lease: Lease, result: bytes) -> None:
        """Acks what is done, and goes on trying while the service is away."""
        failures = 0
        while True:
            try:
                await lease.ack(result)
            except (LeaseStale, LeaseGone) as error:
                _log.warning("message %r was handled, but its ack came too late: %s", lease.id, error)
            except InvalidArgument as error:
                if result:
                    await self._handler_failed(lease, error)
                    return
                raise
            except HeadwayError as error:
                failures += 1
                if is_passing(error) and not (self._is_stopping and failures >= _FINAL_ACK_TRIES):
                    await asyncio.sleep(self._outage.pause_seconds(error))
                    continue
                _log.warning("message %r was handled, but its ack failed: %s", lease.id, error)
                if not is_passing(error):
                    self._failure = self._failure or error
                    self._begin_stop()
            else:
                self._outage.over()
            return

    async def _handler_failed(self, lease: Lease, error: BaseException) -> None:
        _log.warning("the handler failed on message %r", lease.id, exc_info=error)
        if not lease.is_settled:
            await lease.give_back(failed_with=failure_reason(error))
