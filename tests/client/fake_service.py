# ruff: noqa: N802 - the methods are named after the RPCs
"""An in-memory service for tests of the client: enough of the contract, and failures on demand.

Not a model of the real service: nothing lapses, expires or falls due by itself, ids are known for ever. Every call is
recorded; `wait_for` wakes a test when something has happened.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import grpc.aio

from client.fake_core import Failure, FakeQueue, Held
from client.fake_streams import FakeStreams
from headway.v1 import admin_service_pb2_grpc, queue_service_pb2_grpc
from headway.v1 import queue_service_pb2 as pb
from headway.v1.error_reason_pb2 import ErrorReason
from headway.v1.message_pb2 import Delivery, Message, OnDuplicate, PutResult, Settled, SettleResult, Status
from headway.v1.queue_pb2 import Policy

__all__ = ["Failure", "FakeQueue", "FakeService", "serving"]


class FakeService(FakeStreams):
    """Both services on one port."""

    async def Create(self, request: pb.CreateRequest, context: Any) -> pb.CreateResponse:
        failure = await self.begin("Create", request, context)
        created = request.queue not in self.queues
        if created:
            self.queues[request.queue] = FakeQueue(request.queue, request.policy)
        elif self.queues[request.queue].policy != request.policy:
            exists = Failure(code=grpc.StatusCode.ALREADY_EXISTS, reason="QUEUE_EXISTS", metadata={"fields": "limit"})
            await self.abort(context, exists)
        await self.end(context, failure)
        return pb.CreateResponse(queue=self.queues[request.queue].state(), created=created)

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:
        await self.begin("Describe", request, context)
        return pb.DescribeResponse(queue=(await self.find(request.queue, context)).state())

    async def List(self, request: pb.ListRequest, context: Any) -> pb.ListResponse:
        await self.begin("List", request, context)
        names = sorted(n for n in self.queues if n.startswith(request.prefix) and n > request.page_token)
        page = names[:2]
        last = page[-1] if len(names) > 2 else ""
        return pb.ListResponse(queues=[self.queues[n].state() for n in page], next_page_token=last)

    async def Update(self, request: pb.UpdateRequest, context: Any) -> pb.UpdateResponse:
        await self.begin("Update", request, context)
        queue = await self.find(request.queue, context)
        request.update_mask.MergeMessage(request.policy, queue.policy, replace_message_field=True)
        return pb.UpdateResponse(queue=queue.state())

    async def Close(self, request: pb.CloseRequest, context: Any) -> pb.CloseResponse:
        await self.begin("Close", request, context)
        queue = await self.find(request.queue, context)
        if queue.closed:
            await self.abort(context, Failure(code=grpc.StatusCode.FAILED_PRECONDITION, reason="QUEUE_CLOSED"))
        queue.closed = True
        await self.end(context, None)
        return pb.CloseResponse(queue=queue.state())

    async def Delete(self, request: pb.DeleteRequest, context: Any) -> pb.DeleteResponse:
        await self.begin("Delete", request, context)
        await self.find(request.queue, context)
        del self.queues[request.queue]
        await self.end(context, None)
        return pb.DeleteResponse()

    async def Put(self, request: pb.PutRequest, context: Any) -> pb.PutResponse:
        failure = await self.begin("Put", request, context)
        queue = await self.find(request.queue, context)
        if queue.closed:
            await self.abort(context, Failure(code=grpc.StatusCode.FAILED_PRECONDITION, reason="QUEUE_CLOSED"))
        if request.wait.ToMilliseconds() > 0:
            await self.wait_for(lambda: not queue.is_full)
        taken_count, error = self.cuts.pop(0) if self.cuts else (len(request.messages), None)
        results = [self.put_one(queue, message, request.on_duplicate) for message in request.messages[:taken_count]]
        results += [PutResult(id=message.id, error=error) for message in request.messages[taken_count:]]
        if all(r.error.reason == ErrorReason.ERROR_REASON_QUEUE_FULL for r in results):
            full = Failure(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="QUEUE_FULL", retry_seconds=0.5)
            await self.abort(context, full)
        await self.end(context, failure)
        return pb.PutResponse(results=results)

    def put_one(self, queue: FakeQueue, message: Message, on_duplicate: int) -> PutResult:
        is_forgotten = queue.policy.HasField("dedupe_window") and message.id in queue.outcomes
        if message.id and message.id in queue.ids and not is_forgotten:
            if on_duplicate == OnDuplicate.ON_DUPLICATE_KEEP:
                differs = queue.payloads[message.id] != message.payload
                return PutResult(id=message.id, deduplicated=True, body_differs=differs)
            if on_duplicate != OnDuplicate.ON_DUPLICATE_REPLACE:
                status = Status(code=6, message="known", reason=ErrorReason.ERROR_REASON_DUPLICATE_MESSAGE)
                return PutResult(id=message.id, error=status)
            self._remove(queue, message.id)
        if queue.is_full:
            return PutResult(error=Status(code=8, message="full", reason=ErrorReason.ERROR_REASON_QUEUE_FULL))
        ticket = next(queue.tickets)
        kept = Message(id=message.id or f"~{ticket}", payload=message.payload, headers=message.headers)
        queue.ids.add(kept.id)
        queue.payloads[kept.id] = kept.payload
        queue.outcomes.pop(kept.id, None)
        held = Held(ticket=ticket, message=kept, attempt=1)
        if message.delay.ToMilliseconds() > 0:
            queue.delayed.append(held)
            return PutResult(id=kept.id)
        queue.line.append(held)
        return PutResult(id=kept.id, ticket=ticket, position=len(queue.line))

    def _remove(self, queue: FakeQueue, message_id: str) -> None:
        found, token = queue.find(message_id), queue.lease_of(message_id)
        if found:
            found[0].remove(found[1])
        if token:
            del queue.leased[token]
            queue.ended[token] = Settled.SETTLED_STALE

    async def Get(self, request: pb.GetRequest, context: Any) -> pb.GetResponse:
        failure = await self.begin("Get", request, context, is_call=True)
        queue = await self.find(request.queue, context)
        settled = [self._settle(queue, token, Settled.SETTLED_ACKED) for token in request.ack]
        await self.notify()
        again = [each for each in queue.attempts.get(request.attempt_id, ()) if each.lease in queue.leased]
        if request.attempt_id and again:
            await self.end(context, failure)
            return pb.GetResponse(deliveries=again, settled=settled)

        def is_drained() -> bool:
            return queue.closed and not (queue.line or queue.leased or queue.delayed)

        if request.wait.ToMilliseconds() > 0 and not settled:
            try:
                async with asyncio.timeout(request.wait.ToTimedelta().total_seconds()):
                    await self.wait_for(lambda: queue.line or is_drained() or request.queue not in self.queues)
            except TimeoutError:
                return pb.GetResponse()
        if is_drained() and not settled:
            await self.abort(context, Failure(code=grpc.StatusCode.FAILED_PRECONDITION, reason="QUEUE_DRAINED"))
        if request.queue not in self.queues:
            await self.abort(context, Failure(code=grpc.StatusCode.NOT_FOUND, reason="QUEUE_DELETED"))
        deliveries: list[Delivery] = []
        while queue.line and len(deliveries) < max(1, request.max_messages):
            held = queue.line.pop(0)
            held.progress = None
            token = f"lease-{next(self._leases)}"
            queue.leased[token] = held
            deliveries.append(queue.delivery(token, request))
        queue.most_leased = max(queue.most_leased, len(queue.leased))
        queue.attempts[request.attempt_id] = deliveries
        await self.end(context, failure)
        return pb.GetResponse(deliveries=deliveries, settled=settled)

    def _settle(self, queue: FakeQueue, token: str, outcome: Settled.ValueType) -> SettleResult:
        held = queue.leased.pop(token, None)
        if held is None:
            before = queue.ended.get(token, Settled.SETTLED_GONE)
            already = before == outcome == Settled.SETTLED_ACKED
            return SettleResult(lease=token, settled=Settled.SETTLED_ALREADY_ACKED if already else before)
        queue.ended[token] = outcome if outcome == Settled.SETTLED_ACKED else Settled.SETTLED_STALE
        if outcome == Settled.SETTLED_ACKED:
            queue.acked.append(held.message)
            queue.outcomes[held.message.id] = "DONE"
        elif outcome == Settled.SETTLED_RELEASED:
            queue.line.insert(0, held)
        else:
            queue.delayed.append(Held(ticket=held.ticket, message=held.message, attempt=held.attempt + 1))
        return SettleResult(lease=token, settled=outcome)

    async def Ack(self, request: pb.AckRequest, context: Any) -> pb.AckResponse:
        failure = await self.begin("Ack", request, context, is_call=True)
        queue = self.queues.get(request.queue) or FakeQueue("", Policy())
        results = self.ack_all(queue, request)
        await self.end(context, failure)
        await self.pass_gate("Ack")
        return pb.AckResponse(results=results)

    def ack_all(self, queue: FakeQueue, request: pb.AckRequest) -> list[SettleResult]:
        for held in (queue.leased[token] for token in request.leases if token in queue.leased):
            queue.result_of[held.message.id] = request.result
        results = [self._settle(queue, token, Settled.SETTLED_ACKED) for token in request.leases]
        queue.results += [request.result for result in results if result.settled == Settled.SETTLED_ACKED]
        return results

    async def Delay(self, request: pb.DelayRequest, context: Any) -> pb.DelayResponse:
        failure = await self.begin("Delay", request, context, is_call=True)
        results = self.delay_all(self.queues[request.queue], request)
        await self.end(context, failure)
        return pb.DelayResponse(results=results)

    def delay_all(self, queue: FakeQueue, request: pb.DelayRequest) -> list[SettleResult]:
        is_now = request.HasField("delay") and request.delay.ToMilliseconds() == 0
        outcome = Settled.SETTLED_RELEASED if is_now else Settled.SETTLED_DELAYED
        queue.reasons.append(request.reason)
        results = [self._settle(queue, token, outcome) for token in request.leases]
        results += [self._postpone(queue, message_id, outcome) for message_id in request.message_ids]
        for result in results:
            if result.settled == Settled.SETTLED_DELAYED:
                result.available_at.FromDatetime(datetime.now(UTC) + request.delay.ToTimedelta())
        return results

    def _postpone(self, queue: FakeQueue, message_id: str, outcome: Settled.ValueType) -> SettleResult:
        found = queue.find(message_id)
        if found is None:
            is_held = bool(queue.lease_of(message_id))
            return SettleResult(id=message_id, settled=Settled.SETTLED_STALE if is_held else Settled.SETTLED_GONE)
        if outcome == Settled.SETTLED_DELAYED:
            found[0].remove(found[1])
            queue.delayed.append(found[1])
        return SettleResult(id=message_id, settled=outcome)

    async def Withdraw(self, request: pb.WithdrawRequest, context: Any) -> pb.WithdrawResponse:
        failure = await self.begin("Withdraw", request, context)
        queue = await self.find(request.queue, context)
        results = [self._withdraw(queue, message_id) for message_id in request.message_ids]
        await self.end(context, failure)
        return pb.WithdrawResponse(results=results)

    def _withdraw(self, queue: FakeQueue, message_id: str) -> pb.WithdrawResult:
        if queue.find(message_id):
            self._remove(queue, message_id)
            queue.outcomes[message_id] = "WITHDRAWN"
            return pb.WithdrawResult(id=message_id, withdrawn=True)
        error = Status(code=5, message="unknown", reason=ErrorReason.ERROR_REASON_MESSAGE_NOT_FOUND)
        if queue.lease_of(message_id):
            error = Status(code=9, message="held", reason=ErrorReason.ERROR_REASON_MESSAGE_LEASED)
        elif message_id in queue.outcomes:
            outcome = {"id": message_id, "outcome": queue.outcomes[message_id]}
            error = Status(
                code=9, message="too late", reason=ErrorReason.ERROR_REASON_MESSAGE_FINISHED, metadata=outcome
            )
        return pb.WithdrawResult(id=message_id, error=error)

    async def Extend(self, request: pb.ExtendRequest, context: Any) -> pb.ExtendResponse:
        await self.begin("Extend", request, context, is_call=True)
        results = self.extend_all(self.queues[request.queue], request)
        await self.notify()
        return pb.ExtendResponse(results=results)

    def extend_all(self, queue: FakeQueue, request: pb.ExtendRequest) -> list[SettleResult]:
        results = []
        for token in request.leases:
            is_late = queue.ended.get(token) in {Settled.SETTLED_STALE, Settled.SETTLED_DEAD}
            ended = Settled.SETTLED_STALE if is_late else Settled.SETTLED_GONE
            settled = Settled.SETTLED_EXTENDED if token in queue.leased else ended
            if token in queue.leased and request.HasField("progress"):
                queue.leased[token].progress = request.progress
            result = SettleResult(lease=token, settled=settled)
            if settled == Settled.SETTLED_EXTENDED:
                result.available_at.FromDatetime(datetime.now(UTC) + timedelta(seconds=queue.lease_seconds(request)))
            results.append(result)
        return results

    async def Peek(self, request: pb.PeekRequest, context: Any) -> pb.PeekResponse:
        await self.begin("Peek", request, context)
        queue = await self.find(request.queue, context)
        first = max(1, request.from_position) - 1
        seen = list(enumerate(queue.line, 1))[first : first + max(1, request.max_messages)]
        return pb.PeekResponse(
            messages=[pb.PeekedMessage(message=h.message, ticket=h.ticket, position=p) for p, h in seen]
        )


@asynccontextmanager
async def serving(service: FakeService, address: str = "127.0.0.1:0") -> AsyncIterator[FakeService]:
    """Serves on a loopback port until the end of the block; cuts off whoever is still waiting."""
    server = grpc.aio.server()
    servicer: Any = service  # not derived from the generated bases, whose methods are not typed as asyncio's
    queue_service_pb2_grpc.add_QueueServiceServicer_to_server(servicer, server)
    admin_service_pb2_grpc.add_AdminServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port(address)
    service.address = f"127.0.0.1:{port}"
    await server.start()
    try:
        yield service
    finally:
        await server.stop(None)
