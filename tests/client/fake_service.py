# ruff: noqa: N802 - the methods are named after the RPCs
"""An in-memory service for tests of the client: enough of the contract, and failures on demand.

Not a model of the real service: nothing lapses or falls due by itself, ids are known for ever. Every call is recorded;
`wait_for` wakes a test when something has happened.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from google.protobuf import any_pb2
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from headway.v1 import admin_service_pb2 as admin_pb
from headway.v1 import admin_service_pb2_grpc, queue_service_pb2_grpc
from headway.v1 import queue_service_pb2 as pb
from headway.v1.error_reason_pb2 import ErrorReason
from headway.v1.message_pb2 import Delivery, Message, OnDuplicate, PutResult, Settled, SettleResult, Status
from headway.v1.queue_pb2 import Policy
from headway.v1.queue_pb2 import Queue as QueueState

DEFAULT_LEASE_SECONDS = 30


@dataclass(kw_only=True)
class Failure:
    """How one call is to fail: before it does anything, or after it did it (the answer is lost)."""

    code: grpc.StatusCode
    reason: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    retry_seconds: float | None = None
    violations: tuple[tuple[str, str], ...] = ()
    is_after: bool = False


@dataclass(kw_only=True)
class Held:
    """A leased message."""

    ticket: int
    message: Message
    attempt: int


@dataclass
class FakeQueue:
    """One queue: its line in ticket order, its leases, what is delayed until a test says, and how leases ended."""

    name: str
    policy: Policy
    closed: bool = False
    line: list[Held] = field(default_factory=list)
    leased: dict[str, Held] = field(default_factory=dict)
    delayed: list[Held] = field(default_factory=list)
    ended: dict[str, Settled.ValueType] = field(default_factory=dict)
    acked: list[Message] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    tickets: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    most_leased: int = 0

    def state(self) -> QueueState:
        state = QueueState(name=self.name, policy=self.policy, closed=self.closed, durability="memory")
        if not state.policy.HasField("lease"):
            state.policy.lease.CopyFrom(Duration(seconds=DEFAULT_LEASE_SECONDS))
        state.counts.length = len(self.line)
        state.counts.leased = len(self.leased)
        state.counts.delayed = len(self.delayed)
        state.counts.acked = len(self.acked)
        return state


class FakeService:
    """Both services on one port; `queues` is its whole memory."""

    def __init__(self) -> None:
        self.address = ""
        self.queues: dict[str, FakeQueue] = {}
        self.calls: list[tuple[str, Any]] = []
        self.failures: dict[str, list[Failure | None]] = {}  # by method, for its next calls; None: it succeeds
        self.limits = admin_pb.Limits(max_batch_messages=500, max_request_bytes=1024 * 1024)
        self.changed = asyncio.Condition()
        self._leases = itertools.count(1)

    def requests(self, method: str) -> list[Any]:
        """The requests of one method so far, in order."""
        return [request for name, request in self.calls if name == method]

    def fail_next(self, method: str, failure: Failure, times: int = 1) -> None:
        """Lets the next calls of a method fail."""
        self.failures.setdefault(method, []).extend([failure] * times)

    async def wait_for(self, claim: Callable[[], object]) -> None:
        """Returns when the claim holds; looks whenever something was called or changed."""
        async with self.changed:
            await self.changed.wait_for(lambda: bool(claim()))

    async def lapse(self, name: str) -> None:
        """Lets every lease of a queue lapse: their messages come back, and are worth another attempt."""
        queue = self.queues[name]
        for token, held in list(queue.leased.items()):
            queue.ended[token] = Settled.SETTLED_STALE
            queue.line.insert(0, Held(ticket=held.ticket, message=held.message, attempt=held.attempt + 1))
            del queue.leased[token]
        await self._notify()

    async def release_delayed(self, name: str) -> None:
        """Lets everything that is delayed join the line."""
        queue = self.queues[name]
        queue.line += queue.delayed
        queue.delayed.clear()
        await self._notify()

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def _begin(self, method: str, request: Any, context: Any) -> Failure | None:
        """Records a call and lets it fail if it shall; a failure that comes after the effect is handed back."""
        self.calls.append((method, request))
        await self._notify()
        waiting = self.failures.get(method)
        failure = waiting.pop(0) if waiting else None
        if failure is not None and not failure.is_after:
            await self._abort(context, failure)
        return failure

    async def _end(self, context: Any, failure: Failure | None) -> None:
        await self._notify()
        if failure is not None:
            await self._abort(context, failure)

    async def _abort(self, context: Any, failure: Failure) -> None:
        details = status_pb2.Status(code=failure.code.value[0], message="it failed")
        parts: list[Any] = []
        if failure.reason:
            parts.append(
                error_details_pb2.ErrorInfo(reason=failure.reason, domain="headway.v1", metadata=failure.metadata)
            )
        if failure.retry_seconds is not None:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromNanoseconds(int(failure.retry_seconds * 1e9))
            parts.append(retry)
        if failure.violations:
            bad = error_details_pb2.BadRequest()
            for name, text in failure.violations:
                bad.field_violations.add(field=name, description=text)
            parts.append(bad)
        for part in parts:
            packed = any_pb2.Any()
            packed.Pack(part)
            details.details.append(packed)
        trailing = (("grpc-status-details-bin", details.SerializeToString()),) if parts else ()
        await context.abort(failure.code, "it failed", trailing)

    async def _find(self, name: str, context: Any) -> FakeQueue:
        queue = self.queues.get(name)
        if queue is None:
            await self._abort(
                context,
                Failure(code=grpc.StatusCode.NOT_FOUND, reason="QUEUE_NOT_FOUND", metadata={"queue": name}),
            )
            raise AssertionError("abort raises")
        return queue

    async def Create(self, request: pb.CreateRequest, context: Any) -> pb.CreateResponse:
        failure = await self._begin("Create", request, context)
        created = request.queue not in self.queues
        if created:
            self.queues[request.queue] = FakeQueue(request.queue, request.policy)
        await self._end(context, failure)
        return pb.CreateResponse(queue=self.queues[request.queue].state(), created=created)

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:
        await self._begin("Describe", request, context)
        return pb.DescribeResponse(queue=(await self._find(request.queue, context)).state())

    async def List(self, request: pb.ListRequest, context: Any) -> pb.ListResponse:
        await self._begin("List", request, context)
        names = sorted(n for n in self.queues if n.startswith(request.prefix) and n > request.page_token)
        page = names[:2]
        last = page[-1] if len(names) > 2 else ""
        return pb.ListResponse(queues=[self.queues[n].state() for n in page], next_page_token=last)

    async def Update(self, request: pb.UpdateRequest, context: Any) -> pb.UpdateResponse:
        await self._begin("Update", request, context)
        queue = await self._find(request.queue, context)
        request.update_mask.MergeMessage(request.policy, queue.policy, replace_message_field=True)
        return pb.UpdateResponse(queue=queue.state())

    async def Close(self, request: pb.CloseRequest, context: Any) -> pb.CloseResponse:
        await self._begin("Close", request, context)
        queue = await self._find(request.queue, context)
        if queue.closed:
            await self._abort(context, Failure(code=grpc.StatusCode.FAILED_PRECONDITION, reason="QUEUE_CLOSED"))
        queue.closed = True
        await self._end(context, None)
        return pb.CloseResponse(queue=queue.state())

    async def Delete(self, request: pb.DeleteRequest, context: Any) -> pb.DeleteResponse:
        await self._begin("Delete", request, context)
        await self._find(request.queue, context)
        del self.queues[request.queue]
        await self._end(context, None)
        return pb.DeleteResponse()

    async def Put(self, request: pb.PutRequest, context: Any) -> pb.PutResponse:
        failure = await self._begin("Put", request, context)
        queue = await self._find(request.queue, context)
        if queue.closed:
            await self._abort(context, Failure(code=grpc.StatusCode.FAILED_PRECONDITION, reason="QUEUE_CLOSED"))
        if request.wait.ToMilliseconds() > 0:
            await self.wait_for(lambda: not _is_full(queue))
        results = [self._put_one(queue, message, request.on_duplicate) for message in request.messages]
        if all(r.error.reason == ErrorReason.ERROR_REASON_QUEUE_FULL for r in results):
            full = Failure(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="QUEUE_FULL", retry_seconds=0.5)
            await self._abort(context, full)
        await self._end(context, failure)
        return pb.PutResponse(results=results)

    def _put_one(self, queue: FakeQueue, message: Message, on_duplicate: int) -> PutResult:
        if message.id and message.id in queue.ids:
            if on_duplicate == OnDuplicate.ON_DUPLICATE_KEEP:
                return PutResult(id=message.id, deduplicated=True)
            status = Status(code=6, message="known", reason=ErrorReason.ERROR_REASON_DUPLICATE_MESSAGE)
            return PutResult(id=message.id, error=status)
        if _is_full(queue):
            return PutResult(error=Status(code=8, message="full", reason=ErrorReason.ERROR_REASON_QUEUE_FULL))
        ticket = next(queue.tickets)
        kept = Message(id=message.id or f"~{ticket}", payload=message.payload, headers=message.headers)
        queue.ids.add(kept.id)
        held = Held(ticket=ticket, message=kept, attempt=1)
        if message.delay.ToMilliseconds() > 0:
            queue.delayed.append(held)
            return PutResult(id=kept.id)
        queue.line.append(held)
        return PutResult(id=kept.id, ticket=ticket, position=len(queue.line))

    async def Get(self, request: pb.GetRequest, context: Any) -> pb.GetResponse:
        failure = await self._begin("Get", request, context)
        queue = await self._find(request.queue, context)
        settled = [self._settle(queue, token, Settled.SETTLED_ACKED) for token in request.ack]
        await self._notify()

        def is_drained() -> bool:
            return queue.closed and not (queue.line or queue.leased or queue.delayed)

        if request.wait.ToMilliseconds() > 0 and not settled:
            try:
                async with asyncio.timeout(request.wait.ToTimedelta().total_seconds()):
                    await self.wait_for(lambda: queue.line or is_drained() or request.queue not in self.queues)
            except TimeoutError:
                return pb.GetResponse()
        if is_drained() and not settled:
            await self._abort(context, Failure(code=grpc.StatusCode.FAILED_PRECONDITION, reason="QUEUE_DRAINED"))
        if request.queue not in self.queues:
            await self._abort(context, Failure(code=grpc.StatusCode.NOT_FOUND, reason="QUEUE_DELETED"))
        deliveries: list[Delivery] = []
        while queue.line and len(deliveries) < max(1, request.max_messages):
            held = queue.line.pop(0)
            token = f"lease-{next(self._leases)}"
            queue.leased[token] = held
            deliveries.append(Delivery(message=held.message, lease=token, attempt=held.attempt, ticket=held.ticket))
        queue.most_leased = max(queue.most_leased, len(queue.leased))
        await self._end(context, failure)
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
        elif outcome == Settled.SETTLED_RELEASED:
            queue.line.insert(0, held)
        else:
            queue.delayed.append(Held(ticket=held.ticket, message=held.message, attempt=held.attempt + 1))
        return SettleResult(lease=token, settled=outcome)

    async def Ack(self, request: pb.AckRequest, context: Any) -> pb.AckResponse:
        failure = await self._begin("Ack", request, context)
        queue = self.queues.get(request.queue) or FakeQueue("", Policy())
        results = [self._settle(queue, token, Settled.SETTLED_ACKED) for token in request.leases]
        await self._end(context, failure)
        return pb.AckResponse(results=results)

    async def Delay(self, request: pb.DelayRequest, context: Any) -> pb.DelayResponse:
        failure = await self._begin("Delay", request, context)
        queue = self.queues[request.queue]
        is_now = request.HasField("delay") and request.delay.ToMilliseconds() == 0
        outcome = Settled.SETTLED_RELEASED if is_now else Settled.SETTLED_DELAYED
        queue.reasons.append(request.reason)
        results = [self._settle(queue, token, outcome) for token in request.leases]
        await self._end(context, failure)
        return pb.DelayResponse(results=results)

    async def Extend(self, request: pb.ExtendRequest, context: Any) -> pb.ExtendResponse:
        await self._begin("Extend", request, context)
        queue = self.queues[request.queue]
        results = []
        for token in request.leases:
            ended = queue.ended.get(token, Settled.SETTLED_GONE)
            settled = Settled.SETTLED_EXTENDED if token in queue.leased else ended
            results.append(SettleResult(lease=token, settled=settled))
        return pb.ExtendResponse(results=results)

    async def Peek(self, request: pb.PeekRequest, context: Any) -> pb.PeekResponse:
        await self._begin("Peek", request, context)
        queue = await self._find(request.queue, context)
        first = max(1, request.from_position) - 1
        seen = list(enumerate(queue.line, 1))[first : first + max(1, request.max_messages)]
        return pb.PeekResponse(
            messages=[pb.PeekedMessage(message=h.message, ticket=h.ticket, position=p) for p, h in seen]
        )

    async def Purge(self, request: admin_pb.PurgeRequest, context: Any) -> admin_pb.PurgeResponse:
        await self._begin("Purge", request, context)
        queue = await self._find(request.queue, context)
        gone = admin_pb.PurgeResponse(waiting=len(queue.line), delayed=len(queue.delayed))
        queue.line.clear()
        queue.delayed.clear()
        return gone

    async def Repair(self, request: admin_pb.RepairRequest, context: Any) -> admin_pb.RepairResponse:
        await self._begin("Repair", request, context)
        await self._find(request.queue, context)
        return admin_pb.RepairResponse(findings=["the producer role is held by ghost"])

    async def GetServerInfo(
        self, request: admin_pb.GetServerInfoRequest, context: Any
    ) -> admin_pb.GetServerInfoResponse:
        await self._begin("GetServerInfo", request, context)
        return admin_pb.GetServerInfoResponse(version="0.0.fake", limits=self.limits)

    async def _not_served(self, request: Any, context: Any) -> Any:
        await self._abort(context, Failure(code=grpc.StatusCode.UNIMPLEMENTED, reason="NOT_IMPLEMENTED"))

    Withdraw = WatchPosition = WatchQueue = Produce = Consume = _not_served
    Pause = Resume = Check = ListDead = Redrive = _not_served


def _is_full(queue: FakeQueue) -> bool:
    return bool(queue.policy.bound) and len(queue.line) >= queue.policy.bound


@asynccontextmanager
async def serving(service: FakeService, address: str = "127.0.0.1:0") -> AsyncIterator[FakeService]:
    """Serves on a loopback port until the end of the block; cuts off whoever is still waiting."""
    server = grpc.aio.server()
    servicer: Any = service  # not derived from the generated bases: their streams have other types than _not_served
    queue_service_pb2_grpc.add_QueueServiceServicer_to_server(servicer, server)
    admin_service_pb2_grpc.add_AdminServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port(address)
    service.address = f"127.0.0.1:{port}"
    await server.start()
    try:
        yield service
    finally:
        await server.stop(None)
