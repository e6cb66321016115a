"""How a lease speaks of itself: by calls, whoever leased it."""

from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from headway._repeat import Answer
from headway._settle import send_delay
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import SettleResult

if TYPE_CHECKING:
    from headway._queue import Queue


class Link(Protocol):
    """The way to the service on which one lease is settled and kept alive. Its methods raise HeadwayError."""

    async def ack(self, token: str, result: bytes) -> SettleResult:
        """Settles for good."""

    async def delay(self, request: pb.DelayRequest) -> Answer[SettleResult]:
        """Gives back the one lease that is named; tells whether an earlier try may have done it."""

    async def extend(self, token: str, span: timedelta, *, progress: float | None, note: str) -> SettleResult:
        """Keeps alive."""


class CallLink:
    """By ordinary calls, which are made again when their answers are lost."""

    def __init__(self, queue: "Queue") -> None:
        self._queue = queue

    async def ack(self, token: str, result: bytes) -> SettleResult:
        """Settles for good."""
        return (await self._queue.ack([token], result=result))[0]

    async def delay(self, request: pb.DelayRequest) -> Answer[SettleResult]:
        """Gives back."""
        answer = await send_delay(self._queue.client.connection, request)
        return Answer(response=answer.response.results[0], is_again=answer.is_again)

    async def extend(self, token: str, span: timedelta, *, progress: float | None, note: str) -> SettleResult:
        """Keeps alive."""
        return (await self._queue.extend([token], span, progress=progress, note=note))[0]
