"""Streams of producers and consumers, seen by their callers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

import grpc
import grpc.aio

from headway.v1 import error_reason_pb2, message_pb2, queue_service_pb2
from wire.calls import SLACK_S, Line, Settled, leases, message, span

LONG_S = 120.0  # the deadline of a stream that a test ends itself


def ends(results: list[Any]) -> list[Settled]:
    """What became of each lease."""
    return [one.settled for one in results]


class Flow:
    """A stream in both directions. What arrives is kept in order, and read by a task of its own, unless `reads` is
    off."""

    def __init__(self, call: Any, *, reads: bool = True) -> None:
        self.call = call
        self.seen: list[Any] = []
        self._arrived = asyncio.Event()
        self._reader = asyncio.create_task(self._read()) if reads else None

    async def _read(self) -> None:
        try:
            while (response := await self.call.read()) is not grpc.aio.EOF:
                self.seen.append(response)
                self._arrived.set()
        finally:
            self._arrived.set()

    async def until(self, holds: Callable[[], Any], *, within: float = SLACK_S) -> Any:
        """Waits until this holds of what has arrived; what it gave. Raises what the stream ends with before."""
        assert self._reader is not None
        async with asyncio.timeout(within):
            while not (found := holds()):
                self._arrived.clear()
                if self._reader.done():
                    await self._reader
                    await self._raise_error()
                    raise AssertionError(f"the stream has ended: {self.seen}")
                await self._arrived.wait()
        return found

    async def ended(self, *, within: float = SLACK_S) -> list[Any]:
        """All that arrived, once the service has ended the stream. Raises its error."""
        async with asyncio.timeout(within):
            if self._reader is None:
                await self._read()
            else:
                await asyncio.wait({self._reader})
                self._reader.result()
            await self._raise_error()
        return self.seen

    async def _raise_error(self) -> None:
        if await self.call.code() is not grpc.StatusCode.OK:  # read() tells EOF where the status came with it
            raise grpc.aio.AioRpcError(
                await self.call.code(),
                await self.call.initial_metadata(),
                await self.call.trailing_metadata(),
                await self.call.details(),
            )

    async def done(self) -> None:
        """The caller will say no more."""
        await self.call.done_writing()

    async def cancel(self) -> None:
        """The caller goes away."""
        self.call.cancel()
        if self._reader is not None:
            await asyncio.wait({self._reader})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cancel()
        if self._reader is not None and not self._reader.cancelled():
            self._reader.exception()


class Producing(Flow):
    """A Produce stream. Batches are numbered from 1 unless told otherwise."""

    def __init__(self, line: Line, *, timeout: float | None = LONG_S, reads: bool = True) -> None:
        super().__init__(line.stub.Produce(timeout=timeout), reads=reads)
        self.line = line
        self._sent = 0

    async def send(self, *messages: bytes | message_pb2.Message, queue: str | None = None, **fields: object) -> int:
        """Sends one batch; its number. The queue's name goes with the first only, unless it is given."""
        self._sent += 1
        request = queue_service_pb2.ProduceRequest(
            queue=(self.line.name if self._sent == 1 else "") if queue is None else queue,
            messages=[message(one) for one in messages],
            **{"batch": self._sent} | fields,  # type: ignore[arg-type]
        )
        await self.call.write(request)
        return request.batch

    async def answer(self, batch: int) -> list[message_pb2.PutResult]:
        """The results of a batch, once they have come."""
        found = await self.until(lambda: [one for one in self.seen if one.batch == batch])
        return list(found[0].results)

    async def put(self, *messages: bytes | message_pb2.Message, **how: Any) -> list[message_pb2.PutResult]:
        """Sends one batch and waits for its answer."""
        return await self.answer(await self.send(*messages, **how))

    @property
    def answered(self) -> list[int]:
        """The numbers of the batches that were answered, in order."""
        return [one.batch for one in self.seen]


class Consuming(Flow):
    """A Consume stream that has said its `start`, unless `starts` is off."""

    def __init__(
        self,
        line: Line,
        messages: int = 0,
        size: int = 0,
        *,
        lease_ms: float | None = None,
        timeout: float | None = LONG_S,
        reads: bool = True,
        starts: bool = True,
        **start: object,
    ) -> None:
        super().__init__(line.stub.Consume(timeout=timeout), reads=reads)
        self._starts = starts
        self._start = queue_service_pb2.ConsumeStart(
            queue=line.name,
            lease=None if lease_ms is None else span(lease_ms),
            credit=queue_service_pb2.Credit(messages=messages, bytes=size),
            **start,  # type: ignore[arg-type]
        )

    async def __aenter__(self) -> Self:
        if self._starts:
            await self.step(start=self._start)
        return self

    async def step(self, **step: object) -> None:
        """Sends one step."""
        await self.call.write(queue_service_pb2.ConsumeRequest(**step))  # type: ignore[arg-type]

    async def credit(self, messages: int, size: int = 0) -> None:
        """Changes the credit."""
        await self.step(credit=queue_service_pb2.Credit(messages=messages, bytes=size))

    async def ack(self, *tokens: str, **fields: object) -> None:
        """Asks to settle for good."""
        await self.step(ack=queue_service_pb2.AckRequest(leases=tokens, **fields))  # type: ignore[arg-type]

    async def delay(self, *tokens: str, delay_ms: float | None = None, **fields: object) -> None:
        """Asks to give back."""
        request = queue_service_pb2.DelayRequest(leases=tokens, **fields)  # type: ignore[arg-type]
        if delay_ms is not None:
            request.delay.CopyFrom(span(delay_ms))
        await self.step(delay=request)

    async def extend(self, *tokens: str, lease_ms: float | None = None, **fields: object) -> None:
        """Asks to keep alive."""
        lease = None if lease_ms is None else span(lease_ms)
        await self.step(extend=queue_service_pb2.ExtendRequest(leases=tokens, lease=lease, **fields))  # type: ignore[arg-type]

    @property
    def deliveries(self) -> list[message_pb2.Delivery]:
        """All that was delivered, in order."""
        return [delivery for one in self.seen for delivery in one.deliveries]

    @property
    def settled(self) -> list[message_pb2.SettleResult]:
        """All results, in order."""
        return [result for one in self.seen for result in one.settled]

    @property
    def places(self) -> list[message_pb2.Standing]:
        """All places told, in order."""
        return [one.standing for one in self.seen if one.HasField("standing")]

    async def taken(self, count: int) -> list[message_pb2.Delivery]:
        """The first so many deliveries, once they have come."""
        await self.until(lambda: len(self.deliveries) >= count)
        return self.deliveries[:count]

    async def tokens(self, count: int) -> list[str]:
        """The leases of the first so many deliveries."""
        return leases(await self.taken(count))

    async def results(self, count: int) -> list[message_pb2.SettleResult]:
        """The first so many results, once they have come."""
        await self.until(lambda: len(self.settled) >= count)
        return self.settled[:count]

    async def position(self, position: int) -> message_pb2.Standing:
        """Once this place is told."""
        found = await self.until(lambda: [one for one in self.places if one.position == position])
        last: message_pb2.Standing = found[-1]
        return last


def reasons(results: list[message_pb2.PutResult]) -> list[str]:
    """Why each message was not accepted; empty if it was."""
    return [
        error_reason_pb2.ErrorReason.Name(one.error.reason).removeprefix("ERROR_REASON_")
        if one.HasField("error")
        else ""
        for one in results
    ]


async def waiting_payloads(line: Line) -> list[bytes]:
    """The payloads of all that waits, in order."""
    return [one.message.payload for one in await line.peek(1_000)]
