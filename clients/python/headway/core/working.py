"""Works through a queue: a handler in slots, each of which leases, handles and settles one message at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import uuid4

from headway.core.connecting import Connection, log, pause_seconds
from headway.core.errors import HeadwayError, QueueDrained
from headway.core.leasing import Lease, failure_reason


@dataclass(eq=False, repr=False)
class Worker:
    """Calls `handler` with a Lease for each message, `concurrency` at a time; see `run`.

    Each lease is kept alive while its handler runs; then it is acked, unless the handler settled it. Bytes that a
    handler returns are the message's result. One that raises, or whose result is refused, gives its message to the
    queue's backoff. One that is no async function ends the worker: `run` raises TypeError after its first message.

    lease: how long a lease lasts if nothing extends it; default the policy's.
    stop: when it is set no more is leased, what is held is finished, and `run` returns.
    """

    connection: Connection
    queue_name: str
    handler: Callable[[Lease], Awaitable[object]]
    concurrency: int = 1
    lease: timedelta | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    failure: Exception | None = field(default=None, init=False)

    async def run(self) -> None:
        """Works until the queue is drained or `stop` is set; while the service is away or busy it waits and goes on.

        If it is cancelled the handlers are, and their messages are given back for free, as is what a Get that failed
        may have leased. Raises QueueNotFound, QueueDeleted and whatever else no waiting mends, after finishing what it
        holds.
        """
        if self.concurrency < 1:
            raise ValueError("concurrency is at least 1")
        async with asyncio.TaskGroup() as group:
            self.stopping = group.create_task(self.stop.wait())
            await asyncio.wait([group.create_task(self.slot()) for _ in range(self.concurrency)])
            self.stopping.cancel()
        if self.failure is not None:
            raise self.failure

    async def slot(self) -> None:
        """Handles one message after the other."""
        tries, name = 0, uuid4().hex  # that failed in a row, and the name of them all
        # Stopped, or cancelled in the pause, behind one that failed it asks once more, and gives back.
        while not self.stopping.done() or tries:
            try:
                # A longer wait saves calls, a shorter one notices a lost service sooner. The name stays until a Get is
                # answered: one that failed may have leased something.
                got = Lease.get(self.connection, self.queue_name, name, wait=timedelta(seconds=30), lease=self.lease)
                if (lease := await self.unless_stopped(got)) is not None:
                    await self.handle(lease, is_old=tries > 0)
                tries, name = 0, uuid4().hex
            except QueueDrained:
                return
            except Exception as error:  # noqa: BLE001 - the loop's guard: `run` raises it when all has been finished
                if not isinstance(error, HeadwayError) or not error.is_passing:
                    self.failure = self.failure or error
                    self.stopping.cancel()
                    return
                await self.unless_stopped(asyncio.sleep(pause_seconds(self.queue_name, tries := tries + 1, error)))

    async def unless_stopped(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What it answers; None if the stop came first, or the group's end, which is one: then it was cancelled."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self.stopping), return_when=asyncio.FIRST_COMPLETED)
            return await task if task.done() else None
        except asyncio.CancelledError:  # if there is a lease, nobody is going to work on it
            return await task.result().give_back(failed_with=None) if task.done() and task.result() else None
        finally:
            if task.cancel():
                await asyncio.wait([task])  # it may have something to give back

    async def handle(self, lease: Lease, *, is_old: bool) -> None:
        """Runs the handler on a message and settles it. Raises TypeError if what the handler answers is not awaited."""
        answer: object = self.stopping  # until there is one: something that can be awaited
        try:
            async with lease.held(is_old=is_old):
                if isinstance(result := await (answer := self.handler(lease)), bytes) and not lease.is_settled:
                    await lease.ack(result)
        except (Exception, asyncio.CancelledError) as error:  # the loop's guard: it is its message's failure
            if failure_reason(error) is None or not isinstance(answer, Awaitable):  # or each message's
                raise
            log.warning("the handler failed on message %r", lease.delivery.message.id, exc_info=error)
