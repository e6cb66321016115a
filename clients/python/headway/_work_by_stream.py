"""Works through a queue on a Consume stream: hands out leases one by one, or runs a handler over them in slots."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Unpack

from headway._acks import Acks
from headway._consuming import Consumer
from headway._lease import Lease
from headway._runner import Handler, Runner, RunOptions
from headway._work_by_calls import until_room
from headway.core.error import HeadwayError

if TYPE_CHECKING:
    from headway._queue import Queue

_MOST_AT_A_TIME = 100  # messages that handlers which wait for nothing work on before the stream has its turn
_DRAIN_SECONDS = 0.25  # how often a worker that drains looks whether anything is left


async def work(
    queue: "Queue", *, concurrency: int, prefetch: int, lease: timedelta | None, consumer: str
) -> AsyncGenerator[Lease, None]:
    """See `Queue.work`. Whoever settles each lease before taking the next is given credit for one; whoever takes more
    is given credit for twice as many, up to `concurrency`."""
    changed = asyncio.Event()
    held: set[Lease] = set()
    credit = 1 + prefetch
    source = Consumer(
        queue, credit=credit, max_bytes=0, lease=lease, consumer=consumer, keeps=False, on_end=lambda _: changed.set()
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


class StreamRunner(Runner):
    """Runs a handler over a queue in `concurrency` slots, which take what one stream brings and settle on it.

    Acks of messages that are finished at about the same time go together, and the leases that come next come with their
    answer. With a prefetch a slot goes on with the next message while its ack is on the way.
    """

    def __init__(self, queue: "Queue", handler: Handler, *, prefetch: int, **options: Unpack[RunOptions]) -> None:
        super().__init__(queue, handler, **options)
        self._is_ahead = prefetch > 0
        self._acks = Acks(self.ack)
        self._source = Consumer(
            queue,
            credit=options["concurrency"] + prefetch,
            max_bytes=0,
            lease=options["lease"],
            consumer=options["consumer"],
            keeps=True,
        )

    async def run(self) -> None:
        """See `Queue.run`."""
        self._source.start()
        watcher = asyncio.create_task(self._drained()) if self.is_draining else None
        try:
            try:
                await super().run()
            except Exception as error:  # noqa: BLE001 - it is raised behind the acks of what was handled
                self.failure = self.failure or error
            await self._acks.all_done()
        finally:
            self._acks.give_up()
            if watcher is not None:
                watcher.cancel()
            await self._source.close()
        failure = self.failure or self._source.error
        if failure is not None:
            raise failure

    def begin_stop(self, failure: Exception | None = None) -> None:
        """See `Runner.begin_stop`. The stream is told at once, before anything is given back on it: else it might bring
        that again."""
        super().begin_stop(failure)
        self._source.stop()

    async def _drained(self) -> None:
        """Stops when nothing waits, is delayed or is leased any more."""
        pause = _DRAIN_SECONDS
        while True:
            await asyncio.sleep(pause)
            pause = _DRAIN_SECONDS
            if not self._source.is_idle:
                continue
            try:
                is_left = await self.is_anything_left()
            except HeadwayError as error:
                if not error.is_passing:
                    return  # the stream meets it, too, and says so
                pause = self.outage.pause_seconds(error)
                continue
            self.outage.over()
            if not is_left:
                self.begin_stop()
                return

    async def slot(self) -> None:
        """See `Worker.slot`."""
        self.stopping.add_done_callback(self._stop_source)
        for taken in count(1):
            if (lease := await self._source.next()) is None:
                return
            result = await self.work_on(lease)  # its lease is kept alive by where it comes from
            if result is not None and self._is_ahead:
                self._acks.begin(lease, result)
            elif result is not None:
                await self.ack(lease, result)
            if not taken % _MOST_AT_A_TIME:
                await asyncio.sleep(0)

    def _stop_source(self, _: object) -> None:
        self._source.stop()
