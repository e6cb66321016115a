# ruff: noqa: N802 - the methods are named after the RPCs
"""The streams for throughput of the in-memory service: batches put one after the other, and leases within a credit."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any

import grpc

from client.fake_core import Failure, FakeQueue
from client.fake_watch import CUT, FakeWatch
from headway.v1 import queue_service_pb2 as pb
from headway.v1.error_reason_pb2 import ErrorReason
from headway.v1.message_pb2 import Delivery, PutResult, Settled, SettleResult, Status


class FakeStreams(FakeWatch, ABC):
    """Produce and Consume. `break_streams` cuts those under way. Each batch, and each step of a consumer, is recorded
    and fails as a call of its name would: "Produce"; "Consume" (the start), "Ack", "Delay", "Extend", "Credit"."""

    def __init__(self) -> None:
        super().__init__()
        self.swallows_answers = False  # of batches that were put

    @abstractmethod
    def put_one(self, queue: FakeQueue, message: Any, on_duplicate: int) -> PutResult: ...

    @abstractmethod
    def ack_all(self, queue: FakeQueue, request: pb.AckRequest) -> list[SettleResult]: ...

    @abstractmethod
    def delay_all(self, queue: FakeQueue, request: pb.DelayRequest) -> list[SettleResult]: ...

    @abstractmethod
    def extend_all(self, queue: FakeQueue, request: pb.ExtendRequest) -> list[SettleResult]: ...

    async def Produce(
        self, requests: AsyncIterator[pb.ProduceRequest], context: Any
    ) -> AsyncIterator[pb.ProduceResponse]:
        name = ""
        breaks = self._breaks
        self.live_streams += 1
        try:
            async for request in requests:
                name = request.queue or name
                failure = await self.begin("Produce", request, context)
                refused = self._refusal(name, request)
                if refused is not None:
                    await self.abort(context, refused)
                results = [await self._put_in_time(name, each, request.on_duplicate) for each in request.messages]
                await self.pass_gate("Produce")
                if breaks < self._breaks:
                    await self.abort(context, CUT)
                await self.end(context, failure)
                if not self.swallows_answers:
                    yield pb.ProduceResponse(batch=request.batch, results=results)
        finally:
            self.live_streams -= 1
            await self.notify()

    def _refusal(self, name: str, request: pb.ProduceRequest) -> Failure | None:
        if not request.messages or any(message.id.startswith("~") for message in request.messages):
            return Failure(code=grpc.StatusCode.INVALID_ARGUMENT, reason="FIELD_INVALID")
        if len(request.messages) > self.limits.max_batch_messages:
            return Failure(code=grpc.StatusCode.INVALID_ARGUMENT, reason="TOO_LARGE")
        return None

    async def _put_in_time(self, name: str, message: Any, on_duplicate: int) -> PutResult:
        while True:
            queue = self.queues.get(name)
            if queue is None:
                reason, code = ErrorReason.ERROR_REASON_QUEUE_NOT_FOUND, 5
            elif queue.closed:
                reason, code = ErrorReason.ERROR_REASON_QUEUE_CLOSED, 9
            else:
                result = self.put_one(queue, message, on_duplicate)
                if result.error.reason != ErrorReason.ERROR_REASON_QUEUE_FULL:
                    return result
                full = queue
                await self.wait_for(lambda: full.closed or not full.is_full or name not in self.queues)  # noqa: B023
                continue
            return PutResult(id=message.id, error=Status(code=code, message="no", reason=reason))

    async def Consume(
        self, requests: AsyncIterator[pb.ConsumeRequest], context: Any
    ) -> AsyncIterator[pb.ConsumeResponse]:
        start = (await anext(requests)).start
        await self.begin("Consume", start, context)
        queue = await self.find(start.queue, context)
        stream = _Consuming(self, queue, start)
        self.live_streams += 1
        breaks = self._breaks
        reading = asyncio.create_task(stream.read(requests))
        try:
            while True:
                told = await stream.next(context)
                if breaks < self._breaks:
                    await self.abort(context, CUT)
                if told is None:
                    return
                yield told
                if told.drained:
                    return
        finally:
            reading.cancel()
            self.live_streams -= 1
            if not self.keeps_leases:
                stream.give_up()
            await self.notify()


class _Consuming:
    """One consumer's stream."""

    def __init__(self, service: FakeStreams, queue: FakeQueue, start: pb.ConsumeStart) -> None:
        self._service = service
        self._queue = queue
        self._credit = start.credit
        self._start = start
        self._lapses: dict[str, float] = {}  # by lease: when it lapses
        self._steps: list[pb.ConsumeRequest] = []
        self._is_read = False
        self._breaks = service._breaks

    async def read(self, requests: AsyncIterator[pb.ConsumeRequest]) -> None:
        """Takes what the consumer asks for."""
        async for request in requests:
            self._steps.append(request)
            await self._service.notify()
        self._is_read = True
        await self._service.notify()

    async def next(self, context: Any) -> pb.ConsumeResponse | None:
        """What is to be told next; None if that was all."""
        service, queue, name = self._service, self._queue, self._queue.name
        while service._breaks == self._breaks:
            if self._steps:
                settled = await self._do(self._steps.pop(0), context)
                if settled:
                    return pb.ConsumeResponse(settled=settled)
            elif self._is_read:
                return None
            elif service.queues.get(name) is not queue:
                await service.abort(context, Failure(code=grpc.StatusCode.NOT_FOUND, reason="QUEUE_DELETED"))
            elif deliveries := self._lease():
                await service.notify()
                return pb.ConsumeResponse(deliveries=deliveries)
            elif queue.closed and not (queue.line or queue.leased or queue.delayed):
                return pb.ConsumeResponse(drained=True)
            else:
                await self._news()
        return None

    async def _news(self) -> None:
        service, queue = self._service, self._queue
        try:
            async with asyncio.timeout_at(min(self._lapses.values(), default=None)):
                await service.wait_for(
                    lambda: (
                        service._breaks > self._breaks
                        or self._steps
                        or self._is_read
                        or service.queues.get(queue.name) is not queue
                        or (queue.line and self._room())
                        or (queue.closed and not (queue.line or queue.leased or queue.delayed))
                    )
                )
        except TimeoutError:
            return

    def _room(self) -> int:
        now = asyncio.get_running_loop().time()
        self._lapses = {token: at for token, at in self._lapses.items() if token in self._queue.leased and at > now}
        return max(0, self._credit.messages - len(self._lapses))

    def _lease(self) -> list[Delivery]:
        queue, deliveries = self._queue, []
        now = asyncio.get_running_loop().time()
        for _ in range(min(self._room(), len(queue.line))):
            held = queue.line.pop(0)
            held.progress = None
            token = f"lease-{next(self._service._leases)}"
            queue.leased[token] = held
            self._lapses[token] = now + queue.lease_seconds(self._start)
            deliveries.append(queue.delivery(token, self._start))
        queue.most_leased = max(queue.most_leased, len(queue.leased))
        return deliveries

    async def _do(self, request: pb.ConsumeRequest, context: Any) -> list[SettleResult]:
        service, queue = self._service, self._queue
        step = request.WhichOneof("step") or ""
        failure = await service.begin(step.capitalize(), getattr(request, step), context)
        settled: list[SettleResult] = []
        match step:
            case "credit":
                self._credit = request.credit
            case "ack":
                settled = service.ack_all(queue, request.ack)
            case "delay":
                settled = service.delay_all(queue, request.delay)
            case _:
                settled = service.extend_all(queue, request.extend)
                until = asyncio.get_running_loop().time() + queue.lease_seconds(request.extend)
                self._lapses.update(dict.fromkeys(request.extend.leases, until))
        await service.end(context, failure)
        await service.pass_gate(step.capitalize())
        return settled

    def give_up(self) -> None:
        """Its end: what is leased goes back to the head, in ticket order, for free."""
        queue = self._queue
        mine = sorted((t for t in self._lapses if t in queue.leased), key=lambda t: queue.leased[t].ticket)
        for token in reversed(mine):
            queue.ended[token] = Settled.SETTLED_STALE
            queue.line.insert(0, queue.leased.pop(token))
