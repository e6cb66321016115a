"""A stream of places or numbers, read as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from headway.v1 import queue_service_pb2
from wire.calls import SLACK_S, Line, span

WAITING = queue_service_pb2.STATE_WAITING
WAITS_LATER = queue_service_pb2.STATE_DELAYED
DONE = queue_service_pb2.OUTCOME_DONE
DEAD_END = queue_service_pb2.OUTCOME_DEAD
WITHDRAWN = queue_service_pb2.OUTCOME_WITHDRAWN
EXPIRED = queue_service_pb2.OUTCOME_EXPIRED
DELETED = queue_service_pb2.OUTCOME_DELETED
DRAINED = queue_service_pb2.OUTCOME_DRAINED
NOT_KNOWN = queue_service_pb2.OUTCOME_UNSPECIFIED

LONG_S = 120.0  # the deadline of a stream that a test ends itself

Told = queue_service_pb2.WatchPositionResponse


class Watched:
    """Everything that came over one stream so far, in order. `error` is how it ended; None with OK."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.told: list[Any] = []
        self.error: grpc.aio.AioRpcError | None = None
        self._seen = 0
        self._news = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            while (told := await self.call.read()) is not grpc.aio.EOF:
                self.told.append(told)
                self._news.set()
        except grpc.aio.AioRpcError as error:
            self.error = error
        finally:
            self._news.set()

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""
        return self._reader.done()

    async def next(self, wanted: Callable[[Any], bool] = lambda _told: True, *, within: float = SLACK_S) -> Any:
        """The next message that is wanted; those before it are passed over."""
        async with asyncio.timeout(within):
            while True:
                while self._seen < len(self.told):
                    self._seen += 1
                    if wanted(self.told[self._seen - 1]):
                        return self.told[self._seen - 1]
                if self.has_ended:
                    if self.error is not None:
                        raise self.error
                    raise AssertionError(f"the stream ended; it told {self.told[-3:]}")
                self._news.clear()
                await self._news.wait()

    async def position(self, position: int, id_: str = "", **how: Any) -> Any:
        """The next message that tells this position."""
        return await self.next(lambda told: is_at(told, position, id_), **how)

    async def finished(self, id_: str = "", **how: Any) -> queue_service_pb2.Finished:
        """The next message that tells an end."""
        told = await self.next(
            lambda told: told.WhichOneof("event") == "finished" and told.finished.id in (id_, id_ or told.finished.id),
            **how,
        )
        return queue_service_pb2.Finished.FromString(told.finished.SerializeToString())

    async def leased(self, id_: str = "", **how: Any) -> Any:
        """The next message that tells that somebody works on it."""
        told = await self.next(
            lambda told: told.WhichOneof("event") == "leased" and told.leased.id in (id_, id_ or told.leased.id), **how
        )
        return told.leased

    async def end(self, *, within: float = SLACK_S) -> list[Any]:
        """All that was told, when the stream has ended. Raises its error."""
        async with asyncio.timeout(within):
            await asyncio.wait({self._reader})
        if self.error is not None:
            raise self.error
        return self.told

    async def cancel(self) -> None:
        """Ends the stream from here."""
        self.call.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)


def is_at(told: Any, position: int, id_: str = "") -> bool:
    """Whether this tells that a message waits at this position."""
    place = told.position
    return (
        told.WhichOneof("event") == "position"
        and place.state == WAITING
        and place.position == position
        and place.id in (id_, id_ or place.id)
    )


def positions(told: list[Any], id_: str) -> list[int]:
    """The positions that were told of one message, in order."""
    return [
        one.position.position
        for one in told
        if one.WhichOneof("event") == "position" and one.position.id == id_ and one.position.state == WAITING
    ]


@asynccontextmanager
async def _until_the_end(call: Any) -> AsyncIterator[Watched]:
    """Reads a stream until the end of the block."""
    watched = Watched(call)
    try:
        yield watched
    finally:
        await watched.cancel()


@asynccontextmanager
async def watching(
    line: Line, *ids: str, attended: bool = False, timeout: float | None = LONG_S
) -> AsyncIterator[Watched]:
    """Watches messages of a queue until the end of the block."""
    request = queue_service_pb2.WatchPositionRequest(
        queue=line.name, messages=queue_service_pb2.MessageIds(ids=ids, attended=attended)
    )
    async with _until_the_end(line.stub.WatchPosition(request, timeout=timeout)) as watched:
        yield watched


@asynccontextmanager
async def watching_blocked(line: Line, producer: str, *, timeout: float | None = LONG_S) -> AsyncIterator[Watched]:
    """Watches a producer's place in the producer line until the end of the block."""
    request = queue_service_pb2.WatchPositionRequest(
        queue=line.name, blocked=queue_service_pb2.Blocked(producer=producer)
    )
    async with _until_the_end(line.stub.WatchPosition(request, timeout=timeout)) as watched:
        yield watched


@asynccontextmanager
async def watching_queue(
    line: Line, *, interval_ms: float | None = None, timeout: float | None = LONG_S
) -> AsyncIterator[Watched]:
    """Watches a queue's numbers until the end of the block."""
    interval = None if interval_ms is None else span(interval_ms)
    request = queue_service_pb2.WatchQueueRequest(queue=line.name, interval=interval)
    async with _until_the_end(line.stub.WatchQueue(request, timeout=timeout)) as watched:
        yield watched
