"""Works through a queue by calls: hands out leases one by one, or runs a handler over them in slots."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from headway._backoff import Outage, is_passing
from headway._errors import HeadwayError, InvalidArgument, LeaseGone, LeaseStale, QueueDrained
from headway._fetch import Fetched, fetch, new_attempt_id
from headway._lease import Lease, failure_reason

if TYPE_CHECKING:
    from headway._queue import Queue

_log = logging.getLogger("headway")

_Answer = TypeVar("_Answer")

_IDLE_WAIT = timedelta(seconds=30)  # one waiting Get; longer saves calls, shorter notices a lost service sooner
_DRAIN_WAIT = timedelta(milliseconds=250)  # the same while another worker's last messages may still come back
_FINAL_ACK_TRIES = 5  # after a stop: how often a finished message's ack is tried before its lease is left to lapse


async def work(
    queue: "Queue", *, concurrency: int, lease: timedelta | None, consumer: str
) -> AsyncGenerator[Lease, None]:
    """See `Queue.work`."""
    held: set[Lease] = set()
    changed = asyncio.Event()
    outage = Outage(queue.name)
    span = lease
    attempt = _Attempt()
    while True:
        await until_room(held, concurrency, changed)
        try:
            if span is None:
                span = await queue.policy_lease()
            fetched = await attempt.fetch(queue, wait=_IDLE_WAIT, lease=span, consumer=consumer, on_end=changed.set)
        except QueueDrained:
            return
        except HeadwayError as error:
            if not is_passing(error):
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


class _Attempt:
    """The name of a Get, kept until the Get is answered: what a lost answer leased is asked for, not left behind."""

    def __init__(self) -> None:
        self._id = new_attempt_id()
        self.is_again = False  # a Get of this name may have leased something unknown to us

    async def fetch(self, queue: "Queue", **parts: Any) -> Fetched:
        """See `_fetch.fetch`."""
        try:
            fetched = await fetch(queue, attempt_id=self._id, is_again=self.is_again, on_lost=self._note_lost, **parts)
        except HeadwayError as error:
            if error.is_outcome_unknown:
                self._note_lost()
            raise
        self._id, self.is_again = new_attempt_id(), False
        return fetched

    def _note_lost(self) -> None:
        self.is_again = True


@dataclass(frozen=True, slots=True)
class _Done:
    """A message that was handled, and what its handler made of it."""

    lease: Lease
    result: bytes = b""


class CallRunner:
    """Runs a handler over a queue in `concurrency` slots; each slot fetches, handles and settles one message at a time.

    A slot that has handled a message acks it and asks for the next in one call that does not wait; only if that finds
    nothing it makes a call that waits. So an ack never hangs on an empty line. A result needs a call of its own.
    """

    def __init__(
        self,
        queue: "Queue",
        handler: Callable[[Lease], Awaitable[object]],
        *,
        concurrency: int,
        lease: timedelta | None,
        consumer: str,
        stop: asyncio.Event | None,
        drain: bool,
    ) -> None:
        self._queue = queue
        self._handler = handler
        self._concurrency = concurrency
        self._span = lease
        self._consumer = consumer
        self._stop = stop
        self._drain = drain
        self._outage = Outage(queue.name)
        self._is_stopping = asyncio.Event()
        self._idle: set[asyncio.Task[Any]] = set()
        self._failure: HeadwayError | None = None

    async def run(self) -> None:
        """See `Queue.run`."""
        async with asyncio.TaskGroup() as group:
            listener = group.create_task(self._listen(self._stop)) if self._stop is not None else None
            await asyncio.wait([group.create_task(self._slot()) for _ in range(self._concurrency)])
            if listener is not None:
                listener.cancel()
        if self._failure is not None:
            raise self._failure

    async def _listen(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._begin_stop()

    def _begin_stop(self) -> None:
        self._is_stopping.set()
        for task in self._idle:
            task.cancel()

    async def _slot(self) -> None:
        attempt = _Attempt()
        done: _Done | None = None  # to be acked with the next call
        failures = 0
        while done is not None or not self._is_stopping.is_set():
            try:
                lease = await self._next(attempt, done)
                done, failures = None, 0
                self._outage.over()
                if lease is None and self._drain and await self._nothing_left():
                    self._begin_stop()
            except QueueDrained:
                return
            except HeadwayError as error:
                failures += 1
                if isinstance(error, InvalidArgument) and done is not None and done.result:
                    await self._handler_failed(done.lease, error)
                    done, failures = None, 0
                elif not self._may_go_on(error, failures, done):
                    return
                else:
                    await self._pause(self._outage.pause_seconds(error), is_held=done is not None)
                continue
            if lease is not None and self._is_stopping.is_set():
                await lease.give_back(failed_with=None)
            elif lease is not None:
                done = await self._handle(lease)
        if attempt.is_again:
            await self._return_lost(attempt)

    async def _return_lost(self, attempt: _Attempt) -> None:
        """Gives back for free what a Get leased whose answer never came, now that nobody is going to work on it."""
        try:
            fetched = await attempt.fetch(self._queue, lease=self._span, consumer=self._consumer)
        except HeadwayError as error:
            _log.warning("queue %r: a message may be left leased until its lease lapses: %s", self._queue.name, error)
            return
        for lease in fetched.leases:
            await lease.give_back(failed_with=None)

    def _may_go_on(self, error: HeadwayError, failures: int, done: _Done | None) -> bool:
        """Whether trying again makes sense; if not it is said why, and the others stop too if the error lasts."""
        if is_passing(error) and not (self._is_stopping.is_set() and failures >= _FINAL_ACK_TRIES):
            return True
        if done is not None:
            _log.warning("message %r was handled, but its ack failed: %s", done.lease.id, error)
        if not is_passing(error):
            self._failure = self._failure or error
            self._begin_stop()
        return False

    async def _next(self, attempt: _Attempt, done: _Done | None) -> Lease | None:
        """Acks what is done and fetches one message; None if there was none, or if the stop came first."""
        if self._span is None:
            span = await self._unless_stopped(self._queue.policy_lease())
            if span is None:
                return None
            self._span = span
        if done is None:
            wait = _DRAIN_WAIT if self._drain else _IDLE_WAIT
            fetched = await self._unless_stopped(
                attempt.fetch(self._queue, wait=wait, lease=self._span, consumer=self._consumer)
            )
        elif done.result or (self._is_stopping.is_set() and not attempt.is_again):
            self._note_ack(done.lease, (await self._queue.ack([done.lease.token], result=done.result))[0])
            return None
        else:
            ack = [done.lease.token]
            fetched = await attempt.fetch(self._queue, lease=self._span, consumer=self._consumer, ack=ack)
            self._note_ack(done.lease, fetched.settled[0])
        return fetched.leases[0] if fetched is not None and fetched.leases else None

    def _note_ack(self, lease: Lease, result: Any) -> None:
        try:
            lease.book(result)
        except (LeaseStale, LeaseGone) as error:
            _log.warning("message %r was handled, but its ack came too late: %s", lease.id, error)

    async def _handle(self, lease: Lease) -> _Done | None:
        """Runs the handler; what is now to be acked."""
        try:
            async with lease.kept_alive():
                result = await self._handler(lease)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                if not lease.is_settled:
                    await lease.give_back(failed_with=None)
                raise
            await self._handler_failed(lease, error)
        except Exception as error:  # noqa: BLE001 - the loop's guard: what a handler raises is its message's failure
            await self._handler_failed(lease, error)
        else:
            if not lease.is_settled:
                return _Done(lease, result if isinstance(result, bytes) else b"")
        return None

    async def _handler_failed(self, lease: Lease, error: BaseException) -> None:
        _log.warning("the handler failed on message %r", lease.id, exc_info=error)
        if not lease.is_settled:
            await lease.give_back(failed_with=failure_reason(error))

    async def _nothing_left(self) -> bool:
        counts = (await self._queue.describe()).counts
        return not (counts.length or counts.leased or counts.delayed)

    async def _unless_stopped(self, call: Coroutine[Any, Any, _Answer]) -> _Answer | None:
        """The call's answer; None if the stop came first, and then the call was cancelled."""
        if self._is_stopping.is_set():
            call.close()
            return None
        task = asyncio.create_task(call)
        self._idle.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if self._is_stopping.is_set() and (me is None or not me.cancelling()):
                return None
            raise
        finally:
            self._idle.discard(task)

    async def _pause(self, seconds: float, *, is_held: bool) -> None:
        """Waits; a stop cuts it short unless a finished message still needs its ack."""
        if is_held:
            await asyncio.sleep(seconds)
        else:
            await self._unless_stopped(asyncio.sleep(seconds))
