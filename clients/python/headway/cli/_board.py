"""All queues and their numbers, as `headway top` shows them."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from headway._client import Client
from headway._outage import Outage
from headway._places import Eta, QueueNumbers
from headway.cli._output import state_in_a_word, to_plain
from headway.cli._telling import eta_record, instant, span_in_words
from headway.core.error import HeadwayError
from headway.core.errors import FieldInvalid, NotImplementedByService, QueueNotFound
from headway.v1.queue_pb2 import Queue as QueueState

_log = logging.getLogger("headway")

_LIST_SECONDS = 5.0  # how soon a queue that somebody makes is shown; a listing costs the more the more there is
_MOST_STREAMS = 200  # queues beyond these show what the listing says
COLUMNS = ("queue", "length", "leased", "delayed", "dead", "oldest", "put/s", "ack/s", "wait", "standing", "state")


class Order(StrEnum):
    """What the queues are sorted by: names upwards, numbers downwards."""

    NAME = "name"
    LENGTH = "length"
    LEASED = "leased"
    DELAYED = "delayed"
    DEAD = "dead"
    OLDEST = "oldest"
    RATE = "rate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One queue as it was told last."""

    queue: QueueState
    numbers: QueueNumbers | None = None  # None: of a listing, which knows less

    def as_record(self) -> dict[str, object]:
        """As JSON can say it: a WatchQueueResponse, as far as it is known."""
        known = self.numbers
        watched = {"as_of": instant(known.as_of), "eta": eta_record(known.eta)} if known is not None else {}
        return {"queue": to_plain(self.queue), **watched}

    def cells(self) -> tuple[object, ...]:
        """Its line of the table."""
        counts, limit = self.queue.counts, self.queue.policy.limit
        eta = self.numbers.eta if self.numbers is not None else Eta(known=False)
        return (
            self.queue.name,
            counts.length,
            f"{counts.leased}/{limit}" if limit else str(counts.leased),
            counts.delayed,
            counts.dead,
            span_in_words(counts.oldest_age.ToTimedelta()) if counts.HasField("oldest_age") else "",
            f"{counts.put_rate:.1f}",
            f"{counts.ack_rate:.1f}",
            span_in_words(eta.p50) if eta.known and eta.p50 is not None else "",
            counts.consumers_waiting,
            state_in_a_word(self.queue),
        )

    def differs(self, other: "Row") -> bool:
        """Something else is told than in another row, not only later."""
        mine, others = (None if row.numbers is None else row.numbers.eta for row in (self, other))
        return self.queue != other.queue or mine != others

    def rank(self, order: Order) -> float:
        """What is sorted by; the most comes first."""
        counts = self.queue.counts
        match order:
            case Order.NAME:
                return 0
            case Order.OLDEST:
                return counts.oldest_age.ToTimedelta().total_seconds()
            case Order.RATE:
                return counts.put_rate + counts.ack_rate
            case _:
                return float(getattr(counts, order.value))


class Board:
    """All queues: a listing again and again says which there are, and a stream for each tells its numbers."""

    def __init__(self, client: Client, prefix: str, *, interval: timedelta) -> None:
        self._client = client
        self._prefix = prefix
        self._interval = interval
        self._rows: dict[str, Row] = {}
        self._told: dict[str, Row] = {}  # as `on_news` was told last
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._no_streams = asyncio.Event()  # the service says that it does not serve them
        self.is_known = False  # there was a first listing
        self.on_news: Callable[[Row], None] = lambda _: None

    def rows(self, order: Order) -> list[Row]:
        """The queues, sorted; ties by their names."""
        return sorted(self._rows.values(), key=lambda row: (-row.rank(order), row.queue.name))

    async def look(self) -> None:
        """Lists the queues once."""
        seen = {queue.name: queue async for queue in self._client.list_queues(self._prefix)}
        for name in self._rows.keys() - seen.keys():
            self._forget(name)
        for name, queue in seen.items():
            if name not in self._streams:
                self._note(Row(queue=queue))
        self.is_known = True

    async def follow(self) -> None:
        """Keeps the rows true until it is cancelled. Raises what the first listing raises, or what would not pass."""
        try:
            async with asyncio.TaskGroup() as group:
                await self._follow(group)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the listing's, or what all streams have; their own they keep

    async def _follow(self, group: asyncio.TaskGroup) -> None:
        outage = Outage(self._prefix)
        while True:
            try:
                await self.look()
            except HeadwayError as error:
                if not (self.is_known and error.is_passing):
                    raise
                await asyncio.sleep(outage.pause_seconds(error))
                continue
            outage.over()
            for name in [] if self._no_streams.is_set() else list(self._rows)[:_MOST_STREAMS]:
                if name not in self._streams:
                    self._streams[name] = group.create_task(self._stream(name))
            await self._pause()

    async def _pause(self) -> None:
        if self._no_streams.is_set():
            await asyncio.sleep(self._interval.total_seconds())
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_LIST_SECONDS):
                await self._no_streams.wait()

    async def _stream(self, name: str) -> None:
        try:
            async for numbers in self._client.queue(name).watch_queue(interval=self._interval):
                self._note(Row(queue=numbers.queue, numbers=numbers))
        except NotImplementedByService:
            self._no_streams.set()
        except QueueNotFound:
            self._rows.pop(name, None)
            self._told.pop(name, None)
        except FieldInvalid:
            raise  # the interval: no queue is told
        except HeadwayError as error:
            _log.warning("queue %r: %s", name, error)  # the next listing begins another stream
        finally:
            if self._streams.get(name) is asyncio.current_task():
                del self._streams[name]

    def _note(self, row: Row) -> None:
        name = row.queue.name
        self._rows[name] = row
        is_final = row.numbers is not None or self._no_streams.is_set()  # no stream says the same in a moment
        if is_final and (name not in self._told or row.differs(self._told[name])):
            self._told[name] = row
            self.on_news(row)

    def _forget(self, name: str) -> None:
        self._rows.pop(name, None)
        self._told.pop(name, None)
        stream = self._streams.pop(name, None)
        if stream is not None:
            stream.cancel()
