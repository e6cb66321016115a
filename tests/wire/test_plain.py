"""The plain way to take calls answers as the fast one does, byte for byte: the same calls, in the same order, to a
service of each kind, and their answers side by side.

What differs by its nature is made the same first: instants and spans of time, and what is random in leases, places and
generations. What is left is compared as bytes, the status and its details as well.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as ProtoMessage
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2
from google.rpc.status_pb2 import Status

from harness import ServiceProcess, StoreServer, eventually
from headway.v1 import admin_service_pb2 as admin_pb
from headway.v1 import queue_pb2
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import ON_DUPLICATE_KEEP, ON_DUPLICATE_REPLACE
from wire.calls import SLACK_S, Message, span
from wire.every_call import ADMIN_SERVICE, QUEUE_SERVICE, REQUESTS

pytestmark = pytest.mark.any_store

CLASSES = {
    f"/{service.full_name}/{method.name}": method.output_type._concrete_class
    for file in (pb, admin_pb)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
STREAMS = {
    f"/{service.full_name}/{method.name}"
    for file in (pb, admin_pb)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if method.server_streaming
}
# Named, so that the details of errors can be read.
assert error_details_pb2.ErrorInfo
OF_TIME = {"put_rate", "ack_rate", "generation", "process", "prefix"}
OF_TIME_TYPES = {"google.protobuf.Timestamp", "google.protobuf.Duration", "headway.v1.Eta"}
SPANS_THAT_STAY = {"headway.v1.Policy", "headway.v1.Retry", "headway.v1.Poll", "headway.v1.Limits"}


@dataclass
class Side:
    """One of the two services, and what it said so far."""

    name: str
    channel: grpc.aio.Channel
    said: list[tuple[str, list[bytes]]] = field(default_factory=list)
    leases: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # what is random, and what it is called here

    def known(self, text: str) -> str:
        """The same text for the same random one, in the order in which they were first seen."""
        return self.names.setdefault(text, f"<{len(self.names)}>")

    async def queue(self, method: str, request: ProtoMessage) -> list[Any]:
        """A call of producers and workers."""
        return await self.call(QUEUE_SERVICE + method, request)

    async def admin(self, method: str, request: ProtoMessage) -> list[Any]:
        """A call of operators."""
        return await self.call(ADMIN_SERVICE + method, request)

    async def call(self, method: str, request: ProtoMessage | bytes) -> list[Any]:
        """Makes a call and notes its answers and its end."""
        raw = request if isinstance(request, bytes) else request.SerializeToString()
        answers: list[bytes] = []
        try:
            if method in STREAMS:
                stream: Any = self.channel.unary_stream(method)
                call = stream(raw, timeout=SLACK_S)
                async for answer in call:
                    answers.append(answer)
                    if method.endswith("WatchQueue"):
                        break
            else:
                unary: Any = self.channel.unary_unary(method)
                answers.append(await unary(raw, timeout=SLACK_S))
            end = "OK"
        except grpc.aio.AioRpcError as error:
            end = self.ended(error)
        return self.note(f"{method}: {end}", method, answers)

    def ended(self, error: grpc.aio.AioRpcError) -> str:
        """The end of a call that failed."""
        trailing = dict(error.trailing_metadata() or ())
        details = trailing.pop("grpc-status-details-bin", b"")
        status = Status.FromString(details if isinstance(details, bytes) else details.encode())
        told = json_format.MessageToJson(status, sort_keys=True)  # a map's entries have no order on the wire
        return f"{error.code()} {self.plain_text(error.details() or '')} {trailing} {self.plain_text(told)}"

    def plain_text(self, text: str) -> str:
        """Without made ids, names of processes, and spans of time."""
        text = re.sub(r"~[0-9a-f]{16}", "~<generation>", text)
        text = re.sub(r"headway/[^/]+/\d+/[0-9a-f]{8}", "<process>", text)
        return re.sub(r'"retryDelay": "[^"]+"', "<time>", text)

    def note(self, what: str, method: str, answers: Iterable[bytes]) -> list[Any]:
        """Keeps what was said; returns the answers as they came."""
        parsed = [CLASSES[method].FromString(answer) for answer in answers]
        masked = [CLASSES[method].FromString(answer.SerializeToString()) for answer in parsed]
        for answer in masked:
            self.mask(answer)
        self.said.append((what, [answer.SerializeToString(deterministic=True) for answer in masked]))
        return parsed

    def mask(self, message: ProtoMessage) -> None:
        """Makes the same what differs by its nature."""
        spans_stay = message.DESCRIPTOR.full_name in SPANS_THAT_STAY
        for described, value in message.ListFields():
            if described.name in OF_TIME:
                message.ClearField(described.name)
            elif (kind := described.message_type) is not None:
                is_map = kind.GetOptions().map_entry
                if kind.full_name in OF_TIME_TYPES and not spans_stay:
                    if not described.is_repeated:
                        value.Clear()
                        value.SetInParent()  # that it is there is compared
                elif not is_map:
                    for one in value if described.is_repeated else [value]:
                        self.mask(one)
            elif described.type == FieldDescriptor.TYPE_STRING and not described.is_repeated:
                if described.name in {"lease", "place"}:
                    setattr(message, described.name, self.known(value))
                else:
                    setattr(message, described.name, self.plain_text(value))


@pytest.fixture
async def sides(
    store_server: StoreServer, tmp_path: Path, connect: Callable[[str], grpc.aio.Channel]
) -> AsyncIterator[tuple[Side, Side]]:
    """The fast way and the plain one, each with queues of its own."""
    services = []
    for name, flags in (("fast", ()), ("plain", ("--plain",))):
        (tmp_path / name).mkdir()
        env = {"HEADWAY_REDIS_URL": store_server.url, "PRESSURE_PREFIX": f"p{uuid.uuid4().hex[:8]}"}
        services.append(ServiceProcess(tmp_path / name, env=env, flags=flags))
    try:
        channels = [connect(service.start().address) for service in services]
        yield Side("fast", channels[0]), Side("plain", channels[1])
    finally:
        for service in services:
            service.stop()


def assert_alike(sides: tuple[Side, Side]) -> None:
    fast, plain = sides
    assert len(fast.said) == len(plain.said) > 0
    for ours, theirs in zip(fast.said, plain.said, strict=True):
        assert ours == theirs


def put(*messages: Message, **fields: Any) -> pb.PutRequest:
    return pb.PutRequest(queue="jobs", messages=messages, **fields)


async def a_life(side: Side) -> None:
    """Everything that can be asked of a queue while it fills, and much that cannot."""

    queue = side.queue
    for method, make in REQUESTS.items():  # nothing is there, but what Create makes
        await side.call(method, make("jobs" if method.endswith("Create") else "nothing"))
        await side.call(method, make("jobs:closed"))
        await side.call(method, make(""))
    policy = queue_pb2.Policy(bound=8, limit=5, retry=queue_pb2.Retry(max_attempts=2))
    await queue("Create", pb.CreateRequest(queue="jobs", policy=policy))
    await queue("Delete", pb.DeleteRequest(queue="jobs"))
    await queue("Create", pb.CreateRequest(queue="jobs", policy=policy))
    await queue("Create", pb.CreateRequest(queue="jobs", policy=policy))
    await queue("Put", put())
    await queue("Put", put(Message(payload=b"\0\xff\xf5HW\1", headers={"k": "ü"}), Message(payload=b"", id="named")))
    await queue("Put", put(Message(payload=b"again", id="named"), Message(id="\n"), Message(id="~made")))
    await queue("Put", put(Message(payload=b"again", id="named")))
    await queue("Put", put(Message(payload=b"again", id="named"), on_duplicate=ON_DUPLICATE_KEEP))
    await queue("Put", put(Message(payload=b"anew", id="named"), on_duplicate=ON_DUPLICATE_REPLACE))
    await queue(
        "Put", put(Message(payload=b"later", delay=span(3_600_000)), Message(payload=b"soon", time_to_live=span(1)))
    )
    await queue("Put", put(Message(payload=b"a", not_before=Timestamp(seconds=10**10))))
    await queue("Put", put(Message(delay=span(-1)), wait=span(-1), producer="x" * 300, on_duplicate=9))
    await queue("Put", put(*[Message(payload=b"%d" % i) for i in range(9)], all_or_nothing=True))
    await queue("Put", put(*[Message(payload=b"%d" % i) for i in range(9)]))
    await queue("Put", put(*[Message(payload=b"%d" % i * 99) for i in range(9)], producer="of many alike"))
    await queue("Put", put(*[Message(payload=b"%d" % i * 99) for i in range(9)], Message(payload=b"and another")))
    await queue("Put", put(Message(payload=b"too much")))
    await queue("Put", put(*[Message(payload=bytes(2**20))] * 8))
    await queue("Put", put(Message(payload=b"waits in vain"), wait=span(50)))
    await queue("Peek", pb.PeekRequest(queue="jobs", max_messages=3, from_position=2))


async def a_death(side: Side) -> None:
    """What is put is worked on, and everything else that can become of it."""
    queue, admin = side.queue, side.admin

    async def lease(count: int = 1, **fields: Any) -> list[str]:
        [answer] = await queue("Get", pb.GetRequest(queue="jobs", max_messages=count, **fields))
        return [one.lease for one in answer.deliveries]

    first = await lease()
    more = await lease(9, lease=span(60_000), consumer="worker")
    assert len(await lease(ack=[*first, "made up", *first])) == 1  # a slot came free
    await queue("Get", pb.GetRequest(queue="jobs", max_messages=10**6, wait=span(-5)))
    await queue("Get", pb.GetRequest(queue="jobs", stand=True))
    await queue("Get", pb.GetRequest(queue="jobs", place="@nobody", stand=True))
    await queue("Extend", pb.ExtendRequest(queue="jobs", leases=more[:1], lease=span(120_000)))
    await queue("Extend", pb.ExtendRequest(queue="jobs", leases=more[:1], lease=span(1)))
    await queue("Delay", pb.DelayRequest(queue="jobs", leases=more[:1], delay=span(0), reason="not now"))
    await queue("Delay", pb.DelayRequest(queue="jobs", leases=more[1:2], keep_attempt=True, delay=span(3_600_000)))
    await queue("Delay", pb.DelayRequest(queue="jobs", message_ids=["named", "unknown"], delay=span(3_600_000)))
    await queue("Ack", pb.AckRequest(queue="jobs", leases=more, result=b"result"))
    await queue("Ack", pb.AckRequest(queue="jobs", leases=more))
    await queue("Ack", pb.AckRequest(queue="jobs"))
    for _ in range(2):  # its second failure is its last
        [again] = await lease()
        await queue("Delay", pb.DelayRequest(queue="jobs", leases=[again], delay=span(0), reason="failed"))
    await admin("ListDead", admin_pb.ListDeadRequest(queue="jobs"))
    await admin("Redrive", admin_pb.RedriveRequest(queue="jobs", message_ids=["unknown"]))
    await queue("Withdraw", pb.WithdrawRequest(queue="jobs", message_ids=["named", "unknown"]))
    await queue("Describe", pb.DescribeRequest(queue="jobs"))
    for method, make in REQUESTS.items():
        if not method.endswith(("Close", "Delete", "Get")):
            await side.call(method, make("jobs"))
    await queue("List", pb.ListRequest())
    await queue("List", pb.ListRequest(page_size=10**6))
    await admin("GetServerInfo", admin_pb.GetServerInfoRequest())
    await queue("Close", pb.CloseRequest(queue="jobs"))
    await queue("Put", put(Message(payload=b"too late")))
    await queue("Delete", pb.DeleteRequest(queue="jobs"))
    await queue("Delete", pb.DeleteRequest(queue="jobs"))


async def test_a_queues_life_is_told_alike(sides: tuple[Side, Side]) -> None:
    for side in sides:
        await a_life(side)
        await a_death(side)
    assert_alike(sides)
    told = " ".join(what for what, _ in sides[0].said)
    for reason in ("FIELD_INVALID", "NAME_REFUSED", "QUEUE_NOT_FOUND", "QUEUE_FULL", "QUEUE_CLOSED", "PLACE_LOST"):
        assert reason in told  # it was no golden silence
    assert "the request has 8388" in told  # nor did anything but the size of the whole refuse the largest of all


async def both_ways(side: Side) -> None:
    """Both streams of requests: what they answer, and how they end."""
    await side.call(QUEUE_SERVICE + "Create", pb.CreateRequest(queue="jobs"))

    async def all_is_back() -> bool:
        describe: Any = side.channel.unary_unary(QUEUE_SERVICE + "Describe")
        answer = await describe(pb.DescribeRequest(queue="jobs").SerializeToString(), timeout=SLACK_S)
        return pb.DescribeResponse.FromString(answer).queue.counts.leased == 0

    async def stream(method: str, requests: list[Any]) -> list[Any]:
        opened: Any = side.channel.stream_stream(QUEUE_SERVICE + method)
        call = opened(timeout=SLACK_S)
        answers, end = [], "OK"
        try:
            for request in requests:
                await call.write(request.SerializeToString())
                if method == "Produce" or request.HasField("start") or request.HasField("ack"):
                    answers.append(await call.read())
            await call.done_writing()
            while (answer := await call.read()) is not grpc.aio.EOF:
                answers.append(answer)
        except grpc.aio.AioRpcError as error:
            end = side.ended(error)
        answers = [answer for answer in answers if answer is not grpc.aio.EOF]
        await eventually(all_is_back)
        return side.note(f"{method}: {end}", QUEUE_SERVICE + method, answers)

    batches = [
        [Message(payload=b"1"), Message(payload=b"2", id="two")],
        [Message(id="two")],
        [Message(headers={"a": "b"})],
        [Message(payload=b"%d" % i * 99) for i in range(9)],
    ]
    await stream("Produce", [pb.ProduceRequest(queue="jobs", messages=one, batch=7) for one in batches])
    await stream("Produce", [pb.ProduceRequest(queue="", messages=batches[0])])
    await stream("Produce", [pb.ProduceRequest(queue="nothing", messages=batches[0])])
    start = pb.ConsumeRequest(start=pb.ConsumeStart(queue="jobs", credit=pb.Credit(messages=2)))
    [first, *_] = await stream("Consume", [start])
    assert len(first.deliveries) == 2
    await stream("Consume", [start, pb.ConsumeRequest(ack=pb.AckRequest(leases=["made up"]))])
    await side.queue("Put", put(*(Message(payload=b"more") for _ in range(60))))
    [held] = await side.queue("Get", pb.GetRequest(queue="jobs", max_messages=40))
    acks = [ack for ways in in_many_ways([one.lease for one in held.deliveries]) for ack in ways]
    steps = [pb.ConsumeRequest(ack=ack) for ack in acks]
    start.start.credit.messages = 1
    assert len(await stream("Consume", [start, *steps])) == 1 + len(steps)
    await stream("Consume", [pb.ConsumeRequest(credit=pb.Credit(messages=1))])


def in_many_ways(leases: list[str]) -> list[list[pb.AckRequest]]:
    """Leases that follow each other acked as they came, again, among others, and in other orders."""
    one, two, three, four = (leases[at : at + 10] for at in range(0, 40, 10))
    other = two[4][:-1] + ("A" if two[4][-1] != "A" else "B")
    parts = [one, one, [*two[:4], other, *two[5:]], two, three[::-1], [*four[:5], "none", *four[5:]], [*four, *four]]
    return [
        [pb.AckRequest(leases=part), pb.AckRequest(queue="jobs", leases=part[:9], result=b"done")] for part in parts
    ]


async def test_runs_of_leases_are_acked_alike(sides: tuple[Side, Side]) -> None:
    for side in sides:
        await side.queue("Create", pb.CreateRequest(queue="jobs"))
        for call in ("Ack", "Get"):
            await side.queue("Put", put(*(Message(payload=b"%d" % number) for number in range(60))))
            [held] = await side.queue("Get", pb.GetRequest(queue="jobs", max_messages=40))
            for ways in in_many_ways([one.lease for one in held.deliveries]):
                for ack in ways:
                    ack.queue = "jobs"
                    get = pb.GetRequest(queue="jobs", max_messages=1, ack=ack.leases, consumer="worker")
                    await side.queue(call, ack if call == "Ack" else get)
        await side.queue("Describe", pb.DescribeRequest(queue="jobs"))
    assert_alike(sides)


async def test_streams_of_requests_are_answered_alike(sides: tuple[Side, Side]) -> None:
    for side in sides:
        await both_ways(side)
    assert_alike(sides)


async def at_once(side: Side) -> None:
    """Calls of one kind, all at once: together they are the same, in whatever order they come."""
    await side.call(QUEUE_SERVICE + "Create", pb.CreateRequest(queue="jobs"))

    async def all_of(method: str, requests: list[ProtoMessage]) -> list[Any]:
        unary: Any = side.channel.unary_unary(QUEUE_SERVICE + method)
        raw = await asyncio.gather(*(unary(one.SerializeToString(), timeout=SLACK_S) for one in requests))
        answers = sorted((CLASSES[QUEUE_SERVICE + method].FromString(one) for one in raw), key=ticket_of)
        return side.note(method, QUEUE_SERVICE + method, [one.SerializeToString() for one in answers])

    await all_of("Put", [put(Message(payload=b"same"), Message(payload=b"same")) for _ in range(100)])
    answers = await all_of("Get", [pb.GetRequest(queue="jobs", max_messages=2) for _ in range(100)])
    leases = [delivery.lease for answer in answers for delivery in answer.deliveries]
    assert len(set(leases)) == 200
    await all_of("Ack", [pb.AckRequest(queue="jobs", leases=leases[i : i + 2]) for i in range(0, 200, 2)])
    await all_of("Ack", [pb.AckRequest(queue="jobs", leases=leases[i : i + 2]) for i in range(0, 200, 2)])
    await side.call(QUEUE_SERVICE + "Describe", pb.DescribeRequest(queue="jobs"))


def ticket_of(answer: Any) -> Any:
    """By which the answers to calls at once are put in order."""
    if isinstance(answer, pb.GetResponse):
        return answer.deliveries[0].ticket
    return answer.results[0].ticket if isinstance(answer, pb.PutResponse) else 0


async def test_calls_at_once_have_the_same_answers_in_all(sides: tuple[Side, Side]) -> None:
    for side in sides:
        await at_once(side)
    for ours, theirs in zip(sides[0].said, sides[1].said, strict=True):
        assert ours[0] == theirs[0]
        assert sorted(ours[1]) == sorted(theirs[1])


async def test_the_plain_way_is_another_way(sides: tuple[Side, Side]) -> None:
    """A method that nobody knows is answered by gRPC itself there, and by us otherwise."""
    told = []
    for side in sides:
        unary: Any = side.channel.unary_unary(QUEUE_SERVICE + "OfTomorrow")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(b"", timeout=SLACK_S)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        told.append("grpc-status-details-bin" in dict(caught.value.trailing_metadata() or ()))
    assert told == [True, False]
