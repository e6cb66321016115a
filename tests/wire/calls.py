"""Short words for calls, so that a test reads as what happens to one queue. Every call has a deadline."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

import grpc
import redis
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from headway.v1 import admin_service_pb2_grpc, message_pb2, queue_pb2, queue_service_pb2, queue_service_pb2_grpc

NOT_FOUND = grpc.StatusCode.NOT_FOUND
ALREADY_EXISTS = grpc.StatusCode.ALREADY_EXISTS
FAILED_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED

ACKED = message_pb2.SETTLED_ACKED
ALREADY_ACKED = message_pb2.SETTLED_ALREADY_ACKED
RELEASED = message_pb2.SETTLED_RELEASED
DELAYED = message_pb2.SETTLED_DELAYED
EXTENDED = message_pb2.SETTLED_EXTENDED
DEAD = message_pb2.SETTLED_DEAD
STALE = message_pb2.SETTLED_STALE
GONE = message_pb2.SETTLED_GONE

Message = message_pb2.Message
Delivery = message_pb2.Delivery
Settled: TypeAlias = "message_pb2.Settled.ValueType"

# How long a call may take beyond what it was told to wait, on a machine that does other things, too.
SLACK_S = 15.0


def span(milliseconds: float) -> Duration:
    """A Duration; fractions of a millisecond are kept to the nanosecond."""
    duration = Duration()
    duration.FromNanoseconds(round(milliseconds * 1_000_000))
    return duration


def instant(milliseconds: int) -> Timestamp:
    """A Timestamp of milliseconds since 1970."""
    timestamp = Timestamp()
    timestamp.FromMilliseconds(milliseconds)
    return timestamp


def now_ms(client: redis.Redis) -> float:
    """The store's clock."""
    seconds, microseconds = client.time()
    return float(seconds * 1_000 + microseconds / 1_000)


def message(payload: bytes | message_pb2.Message) -> message_pb2.Message:
    """A message; one that is only a payload if bytes are given."""
    return Message(payload=payload) if isinstance(payload, bytes) else payload


def named(message_id: str, payload: bytes = b"payload") -> message_pb2.Message:
    """A message with an id."""
    return Message(id=message_id, payload=payload)


def delayed(milliseconds: float, payload: bytes = b"later") -> message_pb2.Message:
    """A message for later."""
    return Message(payload=payload, delay=span(milliseconds))


def payloads(deliveries: Sequence[message_pb2.Delivery]) -> list[bytes]:
    """What was delivered, in order."""
    return [delivery.message.payload for delivery in deliveries]


def leases(deliveries: Sequence[message_pb2.Delivery]) -> list[str]:
    """The tokens of what was delivered, in order."""
    return [delivery.lease for delivery in deliveries]


class Line:
    """One queue, seen through one service process."""

    def __init__(
        self,
        stub: queue_service_pb2_grpc.QueueServiceAsyncStub,
        name: str,
        admin: admin_service_pb2_grpc.AdminServiceAsyncStub | None = None,
    ) -> None:
        self.stub = stub
        self.name = name
        self.admin = admin

    async def create(self, **policy: object) -> queue_service_pb2.CreateResponse:
        """Makes the queue with these fields of a policy."""
        request = queue_service_pb2.CreateRequest(queue=self.name, policy=queue_pb2.Policy(**policy))  # type: ignore[arg-type]
        return await self.stub.Create(request, timeout=SLACK_S)

    async def describe(self) -> queue_pb2.Queue:
        """The queue as it stands."""
        request = queue_service_pb2.DescribeRequest(queue=self.name)
        return (await self.stub.Describe(request, timeout=SLACK_S)).queue

    async def counts(self) -> queue_pb2.Counts:
        """The queue's numbers; fails if the books do not balance."""
        counts = (await self.describe()).counts
        assert_balanced(counts)
        return counts

    async def update(self, *paths: str, **policy: object) -> queue_pb2.Queue:
        """Changes the policy; without paths, the fields that are given."""
        request = queue_service_pb2.UpdateRequest(
            queue=self.name,
            policy=queue_pb2.Policy(**policy),  # type: ignore[arg-type]
            update_mask=FieldMask(paths=paths or tuple(policy)),
        )
        return (await self.stub.Update(request, timeout=SLACK_S)).queue

    async def put(
        self, *messages: bytes | message_pb2.Message, wait_ms: float = 0, **fields: object
    ) -> queue_service_pb2.PutResponse:
        """Puts a batch."""
        request = queue_service_pb2.PutRequest(
            queue=self.name,
            messages=[message(one) for one in messages],
            wait=span(wait_ms),
            **fields,  # type: ignore[arg-type]
        )
        return await self.stub.Put(request, timeout=SLACK_S + wait_ms / 1_000)

    async def get(
        self, max_messages: int = 1, *, wait_ms: float = 0, lease_ms: float | None = None, **fields: object
    ) -> queue_service_pb2.GetResponse:
        """Leases messages."""
        request = queue_service_pb2.GetRequest(
            queue=self.name,
            max_messages=max_messages,
            wait=span(wait_ms),
            lease=None if lease_ms is None else span(lease_ms),
            **fields,  # type: ignore[arg-type]
        )
        return await self.stub.Get(request, timeout=SLACK_S + wait_ms / 1_000)

    async def take(self, count: int = 1, *, wait_ms: float = 0, lease_ms: float | None = None) -> list[Delivery]:
        """Leases exactly so many messages at once."""
        answer = await self.get(count, wait_ms=wait_ms, lease_ms=lease_ms)
        assert len(answer.deliveries) == count, payloads(answer.deliveries)
        return list(answer.deliveries)

    async def take_one(self, *, wait_ms: float = 0, lease_ms: float | None = None) -> Delivery:
        """Leases exactly one message."""
        return (await self.take(1, wait_ms=wait_ms, lease_ms=lease_ms))[0]

    async def ack(self, *tokens: str, result: bytes = b"") -> list[Settled]:
        """Settles for good; how each lease stands."""
        request = queue_service_pb2.AckRequest(queue=self.name, leases=tokens, result=result)
        return [result.settled for result in (await self.stub.Ack(request, timeout=SLACK_S)).results]

    async def delay(
        self, *tokens: str, delay_ms: float | None = None, until_ms: int | None = None, **fields: object
    ) -> list[message_pb2.SettleResult]:
        """Gives back, and postpones `message_ids`; by the queue's backoff if neither time is given."""
        request = queue_service_pb2.DelayRequest(queue=self.name, leases=tokens, **fields)  # type: ignore[arg-type]
        if delay_ms is not None:
            request.delay.CopyFrom(span(delay_ms))
        if until_ms is not None:
            request.until.CopyFrom(instant(until_ms))
        return list((await self.stub.Delay(request, timeout=SLACK_S)).results)

    async def extend(self, *tokens: str, lease_ms: float | None = None) -> list[message_pb2.SettleResult]:
        """Keeps leases alive."""
        request = queue_service_pb2.ExtendRequest(
            queue=self.name, leases=tokens, lease=None if lease_ms is None else span(lease_ms)
        )
        return list((await self.stub.Extend(request, timeout=SLACK_S)).results)

    async def withdraw(self, *ids: str) -> list[queue_service_pb2.WithdrawResult]:
        """Cancels messages; one result per id."""
        request = queue_service_pb2.WithdrawRequest(queue=self.name, message_ids=ids)
        return list((await self.stub.Withdraw(request, timeout=SLACK_S)).results)

    async def peek(
        self, max_messages: int = 1, *, from_position: int = 0, without_payloads: bool = False
    ) -> list[queue_service_pb2.PeekedMessage]:
        """Looks at waiting messages."""
        request = queue_service_pb2.PeekRequest(
            queue=self.name,
            max_messages=max_messages,
            from_position=from_position,
            without_payloads=without_payloads,
        )
        return list((await self.stub.Peek(request, timeout=SLACK_S)).messages)

    async def close(self, *, wait_ms: float | None = None) -> queue_pb2.Queue:
        """Closes the queue."""
        wait = None if wait_ms is None else span(wait_ms)
        request = queue_service_pb2.CloseRequest(queue=self.name, wait=wait)
        return (await self.stub.Close(request, timeout=SLACK_S)).queue

    async def delete(self, *, wait_ms: float | None = None) -> None:
        """Deletes the queue."""
        wait = None if wait_ms is None else span(wait_ms)
        await self.stub.Delete(queue_service_pb2.DeleteRequest(queue=self.name, wait=wait), timeout=SLACK_S)


def assert_balanced(counts: queue_pb2.Counts) -> None:
    """Every message that was accepted is in exactly one state."""
    states = (
        counts.length,
        counts.leased,
        counts.delayed,
        counts.dead,
        counts.acked,
        counts.expired,
        counts.withdrawn,
        counts.taken_by_foreign,
    )
    assert counts.accepted == sum(states), counts


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one queue in the store, spelled as the pressure protocol does."""

    client: redis.Redis
    prefix: str
    name: str

    def __getitem__(self, suffix: str) -> str:
        base = f"{self.prefix}:{self.name}"
        return f"{base}:{suffix}" if suffix else base

    @property
    def length(self) -> int:
        """How many elements the line has."""
        return int(self.client.llen(self[""]))

    @property
    def is_not_full(self) -> bool:
        """Whether pressure's token for room is there."""
        tokens = int(self.client.llen(self["not_full"]))
        assert tokens <= 1
        return tokens == 1

    def all(self) -> set[str]:
        """Every key of this queue: its own and whatever continues it after a colon."""
        escaped = "".join(f"\\{letter}" if letter in "*?[]\\^" else letter for letter in self[""])
        continued = self.client.scan_iter(match=f"{escaped}:*", count=1_000)
        found = {key.decode(errors="surrogateescape") for key in continued}
        if self.client.exists(self[""]):
            found.add(self[""])
        return found

    def suffixes(self) -> set[str]:
        """The same without what is common, and without Headway's own keys."""
        base = self[""]
        return {key[len(base) + 1 :] for key in self.all() if not key.startswith(f"{base}:x:")}

    def create(self, *payloads: bytes) -> None:
        """Makes the queue, with these messages, as a foreign client does."""
        self.client.set(self["bound"], 0)
        for token in ("producer_free", "consumer_free", "not_full"):
            self.client.lpush(self[token], 0)
        for payload in payloads:
            self.put(payload)

    def put(self, payload: bytes) -> None:
        """Puts a message as a foreign client does."""
        self.client.lpush(self[""], payload)
        self.client.incr(self["stats:produced_messages"])

    def connections(self) -> int:
        """How many connections the store has."""
        return len(self.client.client_list())


async def fail_next(line: Line, **how: object) -> message_pb2.SettleResult:
    """Takes the next message and gives it back."""
    [result] = await line.delay((await line.take_one(wait_ms=10_000)).lease, **how)  # type: ignore[arg-type]
    return result


@asynccontextmanager
async def line_at(address: str, name: str, connect: Callable[[str], grpc.aio.Channel]) -> AsyncIterator[Line]:
    """The same queue through another service process."""
    async with connect(address) as channel:
        yield Line(
            queue_service_pb2_grpc.QueueServiceStub(channel), name, admin_service_pb2_grpc.AdminServiceStub(channel)
        )
