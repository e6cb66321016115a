"""Puts messages on a Produce stream: in batches as they form, several on the way at once, none lost or put twice."""

import asyncio
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Self

import grpc

from headway import _batch
from headway._batching import Answer, Batch, Gathering
from headway._outage import Outage
from headway._producing_stream import ProducingStream
from headway.core.connecting import OF_CALLERS
from headway.core.error import HeadwayError
from headway.core.errors import InvalidArgument, NameRefused, TooLarge, Unavailable
from headway.core.trace import traced
from headway.v1.message_pb2 import Message, PutResult

if TYPE_CHECKING:
    from headway._queue import Queue

_SERVED_SECONDS = 5.0  # a stream that lasted so long was served, though a full queue may have kept it from answering
_ID_BYTES = 12  # random ones, of what is common to all ids that a producer makes


class Producer:
    """Puts messages that come one by one together, on one stream; see `Queue.producer`.

    Use it as `async with queue.producer() as producer:`. The end of the block waits until everything is answered,
    unless it is cancelled: then what was not sent is not put, and what was not answered may or may not have been. Safe
    for many tasks of one event loop. Messages join the line in the order in which they are put.
    """

    def __init__(
        self,
        queue: "Queue",
        *,
        max_batch: int,
        max_bytes: int,
        linger: timedelta,
        max_in_flight: int,
        on_duplicate: _batch.OnDuplicateName,
        makes_ids: bool,
        patience: timedelta | None,
    ) -> None:
        if max_batch < 1 or max_bytes < 1 or max_in_flight < 1:
            raise ValueError("max_batch, max_bytes and max_in_flight are at least 1")
        self._queue = queue
        self._max_batch = max_batch
        self._max_bytes = max_bytes
        self._linger = linger
        self._max_in_flight = max_in_flight
        self._on_duplicate = _batch.on_duplicate_value(on_duplicate)
        self._ids = f"{secrets.token_urlsafe(_ID_BYTES)}-" if makes_ids else ""
        self._id_count = 0
        patience = queue.client.connection.call_timeout if patience is None else patience
        self._patience_seconds = patience.total_seconds()
        self._most_bytes = 0  # of one message: what is larger fits into no request
        self._most_of_message = 0  # what the service counts of one; 0: not known
        self._gathering: Gathering | None = None
        self._stream: ProducingStream | None = None
        self._running: asyncio.Task[None] | None = None
        self._news = asyncio.Event()  # something is sealed, or it closes
        self._is_closing = False
        self._outage = Outage(queue.name)
        self._away_since: float | None = None
        self._is_served = False  # on the stream of now

    async def put(
        self,
        payload: bytes | Message,
        *,
        id: str = "",  # noqa: A002 - the schema's word
        headers: Mapping[str, str] | None = None,
        delay: timedelta | datetime | None = None,
        time_to_live: timedelta | None = None,
    ) -> PutResult:
        """Puts one message, a payload with its parts or a Message, and waits until the store has accepted it.

        Many tasks that call it at once fill batches; called by one task alone each message is a batch, so that one
        better calls `put_soon`. Waits for room while the queue is full, for as long as that takes. One that is
        cancelled may or may not be put. Raises what `Queue.put` raises, but QueueFull: of this message alone, or, if
        the service did not serve it for longer than `patience`, what it said last; but if an earlier try may have put
        the message, what that one failed with, whose `is_outcome_unknown` is set.
        """
        return await (await self.put_soon(payload, id=id, headers=headers, delay=delay, time_to_live=time_to_live))

    async def put_soon(
        self,
        payload: bytes | Message,
        *,
        id: str = "",  # noqa: A002 - the schema's word
        headers: Mapping[str, str] | None = None,
        delay: timedelta | datetime | None = None,
        time_to_live: timedelta | None = None,
    ) -> Answer:
        """Takes one message and answers with the future of what `put` would answer or raise.

        Waits only while too much is on the way: `max_in_flight` batches, and one that is full.
        """
        if self._is_closing or self._gathering is None:
            raise RuntimeError("the producer is closed" if self._is_closing else "use `async with queue.producer()`")
        message = traced(self._made(payload, id, headers, delay, time_to_live), self._most_of_message)
        if not message.id and self._ids:
            self._id_count += 1
            message.id = f"{self._ids}{self._id_count}"
        if (size := message.ByteSize()) > self._most_bytes:
            return _too_large(size, self._most_bytes)
        return await self._gathering.add(message)

    def _made(
        self,
        payload: bytes | Message,
        message_id: str,
        headers: Mapping[str, str] | None,
        delay: timedelta | datetime | None,
        time_to_live: timedelta | None,
    ) -> Message:
        if not isinstance(payload, Message):
            return _batch.make_message(payload, id=message_id, headers=headers, when=delay, time_to_live=time_to_live)
        if message_id or headers or delay is not None or time_to_live is not None:
            raise TypeError("a Message carries its own id, headers and times")
        message = Message()
        message.CopyFrom(payload)  # the caller's own gets no id
        return message

    async def flush(self) -> None:
        """Sends what waits for company and returns when everything taken so far is answered; raises nothing of it."""
        if self._gathering is not None and (left := self._gathering.outstanding()):
            self._gathering.seal()
            await asyncio.wait(left)

    async def close(self) -> None:
        """Takes nothing more, flushes and ends the stream. Idempotent."""
        self._is_closing = True
        self._news.set()
        if self._gathering is not None:
            await self._gathering.emptied()
        if self._running is not None:
            if self._stream is not None:
                self._stream.finish()
            await asyncio.wait([self._running])

    async def __aenter__(self) -> Self:
        limits = await self._queue.client.limits()
        self._most_bytes, self._most_of_message = limits.max_request_bytes, limits.max_message_bytes
        self._gathering = Gathering(
            max_messages=min(self._max_batch, limits.max_batch_messages),
            max_bytes=min(self._max_bytes, max(1, limits.max_request_bytes - _batch.ENVELOPE_BYTES)),
            linger_seconds=self._linger.total_seconds(),
            most_unanswered=self._max_in_flight,
            on_sealed=self._sealed,
        )
        self._running = asyncio.create_task(self._run(self._gathering))
        self._running.add_done_callback(self._note_end)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None or isinstance(error, Exception):
                await self.close()
        finally:
            self._is_closing = True
            if self._running is not None:
                self._running.cancel()
                await asyncio.wait([self._running])
            if self._gathering is not None:
                self._gathering.fail(None)

    def _note_end(self, running: "asyncio.Task[None]") -> None:
        self._is_closing = True
        if not running.cancelled() and (defect := running.exception()) is not None and self._gathering is not None:
            self._gathering.fail(defect)

    def _sealed(self) -> None:
        self._news.set()
        if self._stream is not None:
            self._stream.wake()

    async def _run(self, gathering: Gathering) -> None:
        """Keeps a stream open as long as there is something to put, and over trouble."""
        is_proven = True
        while True:
            while not gathering.unanswered:
                if self._is_closing and gathering.is_empty:
                    return
                self._news.clear()
                await self._news.wait()
            stream = ProducingStream(self._queue, gathering, self._on_duplicate, is_proven=is_proven)
            self._stream, self._is_served = stream, False
            began = asyncio.get_running_loop().time()
            try:
                await stream.run(on_answer=self._served)
            except HeadwayError as error:
                self._stream = None
                is_proven = not gathering.unanswered
                if gathering.unanswered:
                    if stream.was_open and asyncio.get_running_loop().time() - began > _SERVED_SECONDS:
                        self._away_since, self._is_served = None, True
                    await self._broke(gathering, stream, error)
            finally:
                self._stream = None

    def _served(self) -> None:
        self._outage.over()
        self._away_since, self._is_served = None, True

    async def _broke(self, gathering: Gathering, stream: ProducingStream, error: HeadwayError) -> None:
        """Decides what becomes of what was not answered; returns when it is time to send the rest again."""
        if isinstance(error, TooLarge) and error.code is grpc.StatusCode.RESOURCE_EXHAUSTED and stream.sent_count > 1:
            # gRPC's own refusal (P-ERR-4) does not wait its turn: it is of some batch, and those before may be put.
            error = Unavailable("the stream broke over a batch that is larger than the service takes")
        if isinstance(error, InvalidArgument) and not isinstance(error, NameRefused) and stream.sent_count:
            _refuse_one(gathering, error)
            return
        if not (error.is_passing or (self._is_served and isinstance(error, OF_CALLERS))):
            gathering.fail(error)
            return
        if error.is_outcome_unknown:  # of all that was sent, whether answers were lost or the store's
            for batch in list(gathering.unanswered)[: stream.sent_count]:
                _doubt(batch, error)
        gathering.drop_empty()
        now = asyncio.get_running_loop().time()
        self._away_since = self._away_since or now
        pause = self._outage.pause_seconds(error)
        if now + pause - self._away_since > self._patience_seconds:
            gathering.fail(error)
            self._away_since = None
            return
        await asyncio.sleep(pause)


def _too_large(size: int, most: int) -> Answer:
    """Said here, for gRPC would end the whole stream over it."""
    answer: Answer = asyncio.get_running_loop().create_future()
    metadata = {"field": "messages[0]", "limit": str(most), "size": str(size)}
    answer.set_exception(TooLarge(f"the message has {size} bytes, and a request at most {most}", metadata=metadata))
    return answer


def _refuse_one(gathering: Gathering, error: HeadwayError) -> None:
    """The first batch was refused as a whole, and nothing of it happened: halves it until it is one message."""
    first = gathering.unanswered[0]
    if len(first.messages) == 1:
        if not first.answers[0].done():
            first.answers[0].set_exception(error)
        gathering.answered()
        return
    middle = len(first.messages) // 2
    gathering.unanswered[0] = Batch(first.messages[middle:], first.answers[middle:], doubt=first.doubt)
    gathering.unanswered.appendleft(Batch(first.messages[:middle], first.answers[:middle], doubt=first.doubt))


def _doubt(batch: Batch, error: HeadwayError) -> None:
    """It may have been put: those with an id are put again, the others are told so."""
    batch.doubt = error
    kept = [(m, a) for m, a in zip(batch.messages, batch.answers, strict=True) if m.id]
    for message, answer in zip(batch.messages, batch.answers, strict=True):
        if not message.id and not answer.done():
            answer.set_exception(error)
    batch.messages, batch.answers = [m for m, _ in kept], [a for _, a in kept]
