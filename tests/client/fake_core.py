"""What both halves of the in-memory service stand on: its queues, the record of calls, and failures on demand."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import grpc.aio
from google.protobuf import any_pb2
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from headway.v1 import admin_service_pb2 as admin_pb
from headway.v1.message_pb2 import Delivery, Message, Progress, Settled, Status
from headway.v1.queue_pb2 import Counts, Policy
from headway.v1.queue_pb2 import Queue as QueueState

DEFAULT_LEASE_SECONDS = 30


@dataclass(kw_only=True)
class Failure:
    """How one call is to fail: before it does anything, or after it did it; silently, no answer comes at all."""

    code: grpc.StatusCode
    reason: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    retry_seconds: float | None = None
    violations: tuple[tuple[str, str], ...] = ()
    is_after: bool = False
    is_silent: bool = False


@dataclass(kw_only=True)
class Held:
    """A leased message."""

    ticket: int
    message: Message
    attempt: int
    progress: Progress | None = None


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
    results: list[bytes] = field(default_factory=list)
    dead: list[admin_pb.DeadMessage] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    paused: bool = False
    attempts: dict[str, list[Delivery]] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    payloads: dict[str, bytes] = field(default_factory=dict)
    tickets: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    most_leased: int = 0
    result_of: dict[str, bytes] = field(default_factory=dict)
    waiters: list[str] = field(default_factory=list)  # the places of the consumer line
    present: set[str] = field(default_factory=set)  # those of them that have a stream
    eta_seconds: float | None = None
    more_counts: Counts = field(default_factory=Counts)
    is_foreign: bool = False  # its messages were put before the service knew it, and nobody knows when

    def state(self) -> QueueState:
        state = QueueState(
            name=self.name, policy=self.policy, closed=self.closed, paused=self.paused, durability="memory"
        )
        if not state.policy.HasField("lease"):
            state.policy.lease.CopyFrom(Duration(seconds=DEFAULT_LEASE_SECONDS))
        if not state.policy.HasField("dedupe_window"):
            state.policy.dedupe_window.CopyFrom(Duration(seconds=60))
        state.counts.length = len(self.line)
        state.counts.leased = len(self.leased)
        state.counts.delayed = len(self.delayed)
        state.counts.acked = len(self.acked)
        state.counts.dead = len(self.dead)
        state.counts.consumers_waiting = len(self.waiters)
        state.counts.MergeFrom(self.more_counts)
        return state

    def find(self, message_id: str) -> tuple[list[Held], Held] | None:
        """Where a message waits or is delayed."""
        for place in (self.line, self.delayed):
            for held in place:
                if held.message.id == message_id:
                    return place, held
        return None

    def lease_seconds(self, asked: Any) -> float:
        """How long a lease lasts that is asked for so: for its own span, or as the policy says now."""
        told = asked.lease if asked.HasField("lease") else self.state().policy.lease
        return float(told.ToTimedelta().total_seconds())

    def delivery(self, token: str, asked: Any) -> Delivery:
        """What is told of a lease that has just been given to whoever asked so."""
        held, now = self.leased[token], datetime.now(UTC)
        told = Delivery(message=held.message, lease=token, attempt=held.attempt, ticket=held.ticket)
        told.lease_expires_at.FromDatetime(now + timedelta(seconds=self.lease_seconds(asked)))
        if not self.is_foreign:
            told.put_at.FromDatetime(now - timedelta(seconds=60))
            told.waited.FromSeconds(60)
        return told

    @property
    def is_full(self) -> bool:
        """It is at its bound."""
        return bool(self.policy.bound) and len(self.line) >= self.policy.bound

    def lease_of(self, message_id: str) -> str:
        """The lease that is out on a message; "" if none is."""
        return next((token for token, held in self.leased.items() if held.message.id == message_id), "")


class FakeCore:
    """`queues` is its whole memory; every call is recorded."""

    def __init__(self) -> None:
        self.address = ""
        self.queues: dict[str, FakeQueue] = {}
        self.calls: list[tuple[str, Any]] = []
        self.failures: dict[str, list[Failure | None]] = {}  # by method, for its next calls; None: it succeeds
        self.cuts: list[tuple[int, Status]] = []  # of the next Puts: so many are taken, the rest refused for this
        self.limits = admin_pb.Limits(max_batch_messages=500, max_request_bytes=1024 * 1024)
        self.limits.max_delay.FromTimedelta(timedelta(days=366))
        self.limits.max_lease.FromTimedelta(timedelta(hours=12))
        self.unary_calls: set[str] = set()  # those of the calls that streams can do, too
        self.changed = asyncio.Condition()
        self.is_mute = False  # every call from now on is taken and never answered
        self._gates: dict[str, asyncio.Event] = {}

    def requests(self, method: str) -> list[Any]:
        """The requests of one method so far, in order."""
        return [request for name, request in self.calls if name == method]

    def fail_next(self, method: str, failure: Failure, times: int = 1) -> None:
        """Lets the next calls of a method fail."""
        self.failures.setdefault(method, []).extend([failure] * times)

    def hold_next(self, method: str) -> asyncio.Event:
        """Lets the next call of a method take effect and answer only when the event is set."""
        self._gates[method] = asyncio.Event()
        return self._gates[method]

    async def pass_gate(self, method: str) -> None:
        """Waits if the answer is held."""
        gate = self._gates.pop(method, None)
        if gate is not None:
            await gate.wait()

    async def wait_for(self, claim: Callable[[], object]) -> None:
        """Returns when the claim holds; looks whenever something was called or changed."""
        async with self.changed:
            await self.changed.wait_for(lambda: bool(claim()))

    async def lapse(self, name: str, *, is_last: bool = False) -> None:
        """Lets every lease of a queue lapse: their messages come back, and are worth another attempt, unless this was
        the last: then they are dead."""
        queue = self.queues[name]
        for token, held in list(queue.leased.items()):
            queue.ended[token] = Settled.SETTLED_DEAD if is_last else Settled.SETTLED_STALE
            if is_last:
                queue.dead.append(admin_pb.DeadMessage(message=held.message, failures=held.attempt))
            else:
                queue.line.insert(0, Held(ticket=held.ticket, message=held.message, attempt=held.attempt + 1))
            del queue.leased[token]
        await self.notify()

    async def release_delayed(self, name: str) -> None:
        """Lets everything that is delayed join the line."""
        queue = self.queues[name]
        queue.line += queue.delayed
        queue.delayed.clear()
        await self.notify()

    async def notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def begin(self, method: str, request: Any, context: Any, *, is_call: bool = False) -> Failure | None:
        """Records a call, or a step of a stream that could be one, and lets it fail if it shall; a failure that comes
        after the effect is handed back."""
        if is_call:
            self.unary_calls.add(method)
        self.calls.append((method, request))
        await self.notify()
        if self.is_mute:
            await asyncio.Event().wait()
        wait = request.wait.ToTimedelta() if hasattr(request, "wait") else timedelta(0)
        if self.limits.HasField("max_wait") and wait > self.limits.max_wait.ToTimedelta():
            await self.abort(context, Failure(code=grpc.StatusCode.INVALID_ARGUMENT, reason="FIELD_INVALID"))
        waiting = self.failures.get(method)
        failure = waiting.pop(0) if waiting else None
        if failure is not None and not (failure.is_after or failure.is_silent):
            await self.abort(context, failure)
        return failure

    async def end(self, context: Any, failure: Failure | None) -> None:
        await self.notify()
        if failure is not None and failure.is_silent:
            await asyncio.Event().wait()  # until the caller goes away
        if failure is not None:
            await self.abort(context, failure)

    async def abort(self, context: Any, failure: Failure) -> None:
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

    async def find(self, name: str, context: Any) -> FakeQueue:
        queue = self.queues.get(name)
        if queue is None:
            await self.abort(
                context,
                Failure(code=grpc.StatusCode.NOT_FOUND, reason="QUEUE_NOT_FOUND", metadata={"queue": name}),
            )
            raise AssertionError("abort raises")
        return queue
