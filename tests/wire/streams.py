"""A stream in the consumer line, seen by its caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

import grpc

from headway.v1 import message_pb2, queue_service_pb2
from wire.calls import Line

Response = queue_service_pb2.WatchPositionResponse
PATIENCE_S = 10.0


class Standing:
    """Stands from the first use until the block ends. What arrives is kept in order, and read by a task of its own, as
    a client does that is always ready."""

    def __init__(self, line: Line, *, deadline_s: float | None = None, **stand: object) -> None:
        request = queue_service_pb2.WatchPositionRequest(
            queue=line.name,
            stand=queue_service_pb2.Stand(**stand),  # type: ignore[arg-type]
        )
        self.call = line.stub.WatchPosition(request, timeout=deadline_s)
        self.seen: list[Response] = []
        self._arrived = asyncio.Event()
        self._reader = asyncio.create_task(self._read())
        # Nobody need ask how it ended. (Told by the garbage collector, it could end a run: it may come amid a parse.)
        self._reader.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    async def _read(self) -> None:
        try:
            async for response in self.call:
                self.seen.append(response)
                self._arrived.set()
        finally:
            self._arrived.set()

    async def until(self, holds: Callable[[Response], bool]) -> Response:
        """The first response, of those seen and to come, of which this holds. Raises what the stream ends with."""
        at = 0
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for response in self.seen[at:]:
                    if holds(response):
                        return response
                at = len(self.seen)
                self._arrived.clear()
                if self._reader.done():
                    await self._reader
                    raise AssertionError(f"the stream has ended: {self.seen}")
                await self._arrived.wait()

    async def position(self, position: int) -> queue_service_pb2.Position:
        """Once this position is told."""
        return (await self.until(lambda one: one.HasField("position") and one.position.position == position)).position

    async def granted(self, turn: int = 1) -> list[message_pb2.Delivery]:
        """What its n-th turn brings."""
        await self.until(lambda _: len(self.turns) >= turn)
        return self.turns[turn - 1]

    @property
    def turns(self) -> list[list[message_pb2.Delivery]]:
        """What each turn so far has brought."""
        return [list(one.granted.deliveries) for one in self.seen if one.HasField("granted")]

    @property
    def positions(self) -> list[int]:
        """Those told so far."""
        return [one.position.position for one in self.seen if one.HasField("position")]

    @property
    def place(self) -> str:
        """The name of the place told last."""
        return [one.position.place for one in self.seen if one.HasField("position")][-1]

    async def end(self) -> None:
        """The caller goes away."""
        self.call.cancel()
        await asyncio.wait({self._reader})

    async def ended(self) -> Any:
        """The status, once the service has ended the stream."""
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait({self._reader})
        return await self.call.code()

    async def __aenter__(self) -> Self:
        """Returns when the stream stands, or has its turn: who enters later stands behind it."""
        await self.until(lambda _: True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()
        if not self._reader.cancelled():
            self._reader.exception()


async def drained_at_once(standing: Standing) -> None:
    """Asserts that the stream is told that there will never be a turn, and nothing else, and ends with OK."""
    assert await standing.ended() is grpc.StatusCode.OK
    assert [one.finished.outcome for one in standing.seen] == [queue_service_pb2.OUTCOME_DRAINED]
