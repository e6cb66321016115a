"""Works through a queue by calls: hands out leases one by one, or runs a handler over them in slots."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from headway._fetch import Attempt, Fetched
from headway._lease import Lease
from headway._outage import Outage
from headway._runner import Runner
from headway.core.connecting import log
from headway.core.error import HeadwayError
from headway.core.errors import InvalidArgument, LeaseGone, LeaseStale, QueueDrained
from headway.v1.message_pb2 import SettleResult

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
    span = lease
    attempt = Attempt(queue)
    while True:
        await until_room(held, concurrency, changed)
        try:
            if span is None:
                span = await queue.policy_lease()
            fetched = await attempt.fetch(wait=_IDLE_WAIT, lease=span, consumer=consumer, on_end=changed.set)
        except QueueDrained:
            return
        except HeadwayError as error:
            if not error.is_passing:
                raise
            await asyncio.sleep(outage.pause_seconds(error))
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


@dataclass(frozen=True, slots=True)
class _Done:
    """A message that was handled, and what its handler made of it."""

    lease: Lease
    result: bytes


class CallRunner(Runner):
    """Runs a handler over a queue in `concurrency` slots; each slot fetches, handles and settles one message at a time.

    A slot that has handled a message acks it and asks for the next in one call that does not wait; only if that finds
    nothing it makes a call that waits. So an ack never hangs on an empty line. A result needs a call of its own.
    """

    async def slot(self) -> None:
        """See `Worker.slot`."""
        attempt = Attempt(self.queue)
        done: _Done | None = None  # to be acked with the next call
        failures = 0
        while done is not None or not self.is_stopping:
            try:
                lease = await self._next(attempt, done)
                done, failures = None, 0
                self.outage.over()
                if lease is None and self.is_draining and not await self.is_anything_left():
                    self.begin_stop()
            except QueueDrained:
                return
            except HeadwayError as error:
                failures += 1
                if isinstance(error, InvalidArgument) and done is not None and done.result:
                    await self.failed(done.lease, error)
                    done, failures = None, 0
                elif not self.may_go_on(error, failures, done.lease if done is not None else None):
                    return
                else:
                    await self._pause(self.outage.pause_seconds(error), is_held=done is not None)
                continue
            if lease is not None and self.is_stopping:
                await lease.give_back(failed_with=None)
            elif lease is not None:
                async with lease.kept_alive():
                    result = await self.work_on(lease)
                done = _Done(lease, result) if result is not None else None
        if attempt.is_again:
            await self._return_lost(attempt)

    async def _return_lost(self, attempt: Attempt) -> None:
        """Gives back for free what a Get leased whose answer never came, now that nobody is going to work on it."""
        try:
            fetched = await attempt.fetch(lease=await self._span(), consumer=self.consumer)
        except HeadwayError as error:
            log.warning("queue %r: a message may be left leased until its lease lapses: %s", self.queue.name, error)
            return
        for lease in fetched.leases:
            await lease.give_back(failed_with=None)

    async def _span(self) -> timedelta:
        self.lease = self.lease or await self.queue.policy_lease()
        return self.lease

    async def _next(self, attempt: Attempt, done: _Done | None) -> Lease | None:
        """Acks what is done and fetches one message; None if there was none, or if the stop came first."""
        if done is None:
            wait = _DRAIN_WAIT if self.is_draining else _IDLE_WAIT
            fetched = await self.unless_stopped(self._fetch(attempt, wait=wait))
        elif done.result or (self.is_stopping and not attempt.is_again):
            self._note_ack(done.lease, (await self.queue.ack([done.lease.token], result=done.result))[0])
            return None
        else:
            fetched = await self._fetch(attempt, ack=[done.lease.token])
            self._note_ack(done.lease, fetched.settled[0])
        return fetched.leases[0] if fetched is not None and fetched.leases else None

    async def _fetch(self, attempt: Attempt, **parts: Any) -> Fetched:
        return await attempt.fetch(lease=await self._span(), consumer=self.consumer, **parts)

    def _note_ack(self, lease: Lease, result: SettleResult) -> None:
        try:
            lease.book(result)
        except (LeaseStale, LeaseGone) as error:
            log.warning("message %r was handled, but its ack came too late: %s", lease.id, error)

    async def _pause(self, seconds: float, *, is_held: bool) -> None:
        """Waits; a stop cuts it short unless a finished message still needs its ack."""
        if is_held:
            await asyncio.sleep(seconds)
        else:
            await self.unless_stopped(asyncio.sleep(seconds))
