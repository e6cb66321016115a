"""What the runners by stream and by calls have in common: the core's worker, and what becomes of a handled message."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

from headway._lease import Lease
from headway._outage import Outage
from headway.core.connecting import backoff_seconds, log
from headway.core.error import HeadwayError
from headway.core.errors import InvalidArgument, LeaseGone, LeaseStale
from headway.core.leasing import failure_reason
from headway.core.working import Worker
from headway.v1 import queue_service_pb2 as pb

if TYPE_CHECKING:
    from headway._queue import Queue

Handler = Callable[[Lease], Awaitable[object]]

_FINAL_ACK_TRIES = 5  # after a stop: how often a finished message's ack is tried before its lease is left to lapse


class RunOptions(TypedDict):
    """Those of `Queue.run` that both ways of running have."""

    concurrency: int
    lease: timedelta | None
    consumer: str
    stop: asyncio.Event | None
    drain: bool


class Runner(Worker):
    """A worker whose messages are acked apart from their handling, so that the ack may go with something else."""

    def __init__(self, queue: "Queue", handler: Handler, **options: Unpack[RunOptions]) -> None:
        stop = options["stop"] or asyncio.Event()
        concurrency, lease = options["concurrency"], options["lease"]
        super().__init__(
            queue.client.connection, queue.name, cast(Any, handler), concurrency=concurrency, lease=lease, stop=stop
        )
        self.queue = queue
        self.consumer = options["consumer"]
        self.is_draining = options["drain"]
        self.outage = Outage(queue.name)

    @property
    def is_stopping(self) -> bool:
        """Nothing more is to be leased."""
        return self.stopping.done() or bool(self.stopping.cancelling())

    def begin_stop(self, failure: Exception | None = None) -> None:
        """Leases no more, be it for an error that no waiting mends."""
        self.failure = self.failure or failure
        self.stopping.cancel()

    async def work_on(self, lease: Lease) -> bytes | None:
        """Runs the handler; the result to ack the message with, or None if it is settled."""
        try:
            answer = cast(Any, self.handler)(lease)
            if not isawaitable(answer):  # it would fail on each message, and each time have done its work before
                self.begin_stop(TypeError(f"a handler is an `async def`; this one answered {type(answer).__name__}"))
            result = await answer
        except (Exception, asyncio.CancelledError) as error:  # the loop's guard: it is its message's failure
            if failure_reason(error) is None:
                self.begin_stop()  # or what is given back would be leased again at once
                await lease.give_back(failed_with=None)
                raise
            await self.failed(lease, error)
            return None
        if lease.is_settled:
            return None
        return result if isinstance(result, bytes) else b""

    async def failed(self, lease: Lease, error: BaseException) -> None:
        """Gives a message that could not be handled to the queue's backoff."""
        log.warning("the handler failed on message %r", lease.id, exc_info=error)
        await lease.give_back(failed_with=failure_reason(error))

    async def ack(self, lease: Lease, result: bytes = b"") -> None:
        """Acks what is done, and goes on trying while the service is away. A result that is refused is a failure.

        What is no HeadwayError, as from a token that cannot be had, ends the worker, but may pass until its last tries.
        """
        failures = 0
        while True:
            try:
                await lease.settle(pb.AckRequest(result=result))  # not for as long as it may live: this does that
            except (LeaseStale, LeaseGone) as error:
                say_too_late(lease, error)
            except HeadwayError as error:
                failures += 1
                if result and isinstance(error, InvalidArgument):
                    await self.failed(lease, error)
                elif self.may_go_on(error, failures, lease):
                    await asyncio.sleep(self.outage.pause_seconds(error))
                    continue
            except Exception as defect:  # noqa: BLE001 - the loop's guard: `run` raises it
                failures += 1
                self.begin_stop(defect)
                if failures < _FINAL_ACK_TRIES:
                    await asyncio.sleep(backoff_seconds(failures))
                    continue
                log.warning("message %r was handled, but its ack failed: %r", lease.id, defect)
            else:
                if failures:
                    self.outage.over()
            return

    def may_go_on(self, error: HeadwayError, failures: int = 0, handled: Lease | None = None) -> bool:
        """Whether trying again makes sense; if not it is said why, and the others stop too if the error lasts.

        Of an ack: `failures` in a row, and what was `handled`.
        """
        if error.is_passing and not (self.is_stopping and failures >= _FINAL_ACK_TRIES):
            return True
        if handled is not None:
            log.warning("message %r was handled, but its ack failed: %s", handled.id, error)
        if not error.is_passing:
            self.begin_stop(error)
        return False

    async def is_anything_left(self) -> bool:
        """Whether a message waits, is delayed or is leased."""
        counts = (await self.queue.describe()).counts
        return bool(counts.length or counts.leased or counts.delayed)


def say_too_late(lease: Lease, error: HeadwayError) -> None:
    """What was done has no say any more."""
    log.warning("message %r was handled, but its ack came too late: %s", lease.id, error)
