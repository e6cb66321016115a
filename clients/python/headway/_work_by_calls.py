"""Works through a queue by calls: hands out leases one by one, or runs a handler over them in slots."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from headway._fetch import Attempt, Fetched
from headway._lease import Lease
from headway._outage import Outage
from headway._runner import Runner, say_too_late
from headway.core.error import HeadwayError
from headway.core.errors import LeaseGone, LeaseStale, QueueDeleted, QueueDrained, QueueNotFound
from headway.core.leasing import ACK_NO_SAY

if TYPE_CHECKING:
    from headway._queue import Queue

_IDLE_WAIT = timedelta(seconds=30)  # one waiting Get; longer saves calls, shorter notices a lost service sooner
_DRAIN_WAIT = timedelta(milliseconds=250)  # the same while another worker's last messages may still come back


async def work(
    queue: "Queue", *, concurrency: int, lease: timedelta | None, consumer: str
) -> AsyncGenerator[Lease, None]:
    """See `Queue.work`."""
    held: set[Lease] = set()
    changed = asyncio.Event()
    outage = Outage(queue.name)
    attempt = Attempt(queue)

    def note_end(_: Lease) -> None:
        changed.set()

    while True:
        await until_room(held, concurrency, changed)
        try:
            fetched = await attempt.fetch(wait=_IDLE_WAIT, lease=lease, consumer=consumer, on_end=note_end)
        except QueueDrained:
            return
        except HeadwayError as error:
            if not error.is_passing:
                raise
            await attempt.pause(outage.pause_seconds(error))
            continue
        outage.over()
        for handle in fetched.leases:
            held.add(handle)
            yield handle


async def until_room(held: set[Lease], concurrency: int, changed: asyncio.Event) -> None:
    """Waits until fewer than `concurrency` leases are unsettled; one that lapsed unsettled does not count for ever."""
    now = asyncio.get_running_loop().time
    while True:
        changed.clear()
        held -= {lease for lease in held if lease.is_settled or lease.lapses_at <= now()}
        if len(held) < concurrency:
            return
        try:
            async with asyncio.timeout_at(min(lease.lapses_at for lease in held)):
                await changed.wait()
        except TimeoutError:
            continue


class CallRunner(Runner):
    """Runs a handler over a queue in `concurrency` slots; each slot fetches, handles and settles one message at a time.

    A slot that has handled a message acks it and asks for the next in one call that does not wait; only if that finds
    nothing it makes a call that waits. So an ack never hangs on an empty line. A result needs a call of its own. The
    lease is kept alive until its ack is through.
    """

    _is_served = False

    async def slot(self) -> None:
        """See `Worker.slot`."""
        attempt = Attempt(self.queue)
        while not self.is_stopping:
            try:
                lease = await self._next(attempt)
                while lease is not None:
                    lease = await self._see_through(lease, attempt)
                if self.is_draining and await self._is_drained():
                    self.begin_stop()
            except QueueDrained:
                return
            except HeadwayError as error:
                if self.may_go_on(self._told(error)):
                    await self.unless_stopped(attempt.pause(self.outage.pause_seconds(error)))
            except Exception as defect:  # noqa: BLE001 - the loop's guard: `run` raises it when all has been finished
                self.begin_stop(defect)
        await attempt.return_lost()  # nobody is going to work on it

    async def _next(self, attempt: Attempt) -> Lease | None:
        """Waits for a message; None if there was none, or if the stop came first."""
        wait = _DRAIN_WAIT if self.is_draining else _IDLE_WAIT

        async def first() -> Lease | None:
            fetched = await self._fetch(attempt, wait=wait)
            return fetched.leases[0] if fetched.leases else None

        lease: Lease | None = await self.unless_stopped(first())
        return lease

    async def _is_drained(self) -> bool:
        """Whether nothing is left to wait for; who is stopping does not ask."""
        return not self.is_stopping and not await self.is_anything_left()

    async def _see_through(self, lease: Lease, attempt: Attempt) -> Lease | None:
        """Handles a message and acks it; the next one, if the same call brought one.

        Raises what that call failed with, once the message is acked all the same.
        """
        if self.is_stopping:
            await lease.give_back(failed_with=None)
            return None
        async with lease.kept_alive():
            result = await self.work_on(lease)
            if result is None:
                return None
            if result or self.is_stopping:
                await self.ack(lease, result)
                return None
            lease.is_ending = True  # an Ack that overtakes an Extend would make it look lost
            try:
                fetched = await self._fetch(attempt, ack=[lease.token])
            except HeadwayError:
                await self.ack(lease)  # alone it is served where a Get is refused (P-ERR-6, P-LEASE-10)
                raise
            except Exception as defect:
                self.begin_stop(defect)
                await self.ack(lease)
                raise
            try:
                lease.book(fetched.settled[0], ACK_NO_SAY)
            except (LeaseStale, LeaseGone) as error:
                say_too_late(lease, error)
            return fetched.leases[0] if fetched.leases else None

    async def _fetch(self, attempt: Attempt, **parts: Any) -> Fetched:
        fetched = await attempt.fetch(lease=self.lease, consumer=self.consumer, **parts)
        self.outage.over()
        self._is_served = True
        return fetched

    def _told(self, error: HeadwayError) -> HeadwayError:
        """Of a queue that was there, QUEUE_NOT_FOUND tells that it was deleted while nobody waited for it here."""
        if self._is_served and isinstance(error, QueueNotFound) and not isinstance(error, QueueDeleted):
            return QueueDeleted(f"the queue {self.queue_name!r} was deleted", metadata=error.metadata)
        return error
