"""Every served call of producers and consumers: what the engine is asked, and what the caller gets."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import structlog.testing
from google.protobuf.duration_pb2 import Duration

from headway.v1 import error_reason_pb2, message_pb2, queue_pb2
from headway.v1 import queue_service_pb2 as pb
from headwayd.domain.errors import (
    DuplicateMessage,
    InternalError,
    MessageFinished,
    MessageLeased,
    MessageNotFound,
    OutcomeUnknown,
    QueueClosed,
    QueueDeleted,
    QueueFull,
)
from headwayd.domain.model import (
    Counts,
    DelayOrder,
    Delivery,
    GetOrder,
    Outcome,
    Peeked,
    Policy,
    PutCode,
    PutOutcome,
    Role,
    Settled,
    Settlement,
    WithdrawOutcome,
)
from headwayd.domain.standing import GetOutcome
from headwayd.rpc.policies import policy_message
from unit.rpc.calling import QueueStub, at
from unit.rpc.fake_engine import FakeEngine, queue_named


async def test_create(stub: QueueStub, engine: FakeEngine) -> None:
    reply = await stub.Create(pb.CreateRequest(queue="q", policy=queue_pb2.Policy(bound=5)), timeout=5)
    assert engine.last == ("q", Policy(bound=5))
    assert reply.created
    assert reply.queue.policy == policy_message(Policy(bound=5))


async def test_describe_tells_everything(stub: QueueStub, engine: FakeEngine) -> None:
    numbers = {name: index for index, name in enumerate(Counts.__dataclass_fields__, 1)}
    numbers["oldest_age_ms"] = numbers.pop("oldest_age_ms") * 1_001
    engine.answers["describe"] = queue_named(
        "q",
        is_closed=True,
        is_paused=True,
        counts=Counts(**numbers),
        producer=Role(is_taken=True, holder="p"),
        consumer=Role(holder="\udcff"),
    )
    queue = (await stub.Describe(pb.DescribeRequest(queue="q"), timeout=5)).queue
    assert (queue.name, queue.closed, queue.paused, queue.durability, queue.generation) == (
        "q",
        True,
        True,
        "everysec",
        "g1",
    )
    assert queue.created_at == at(1_700_000_000_123)
    assert queue.counts.oldest_age.ToMilliseconds() == numbers.pop("oldest_age_ms")
    assert {name: getattr(queue.counts, name) for name in numbers} == numbers
    assert {field.name for field in queue.counts.DESCRIPTOR.fields} == {*numbers, "oldest_age"}
    assert (queue.roles.producer.taken, queue.roles.producer.holder) == (True, "p")
    assert (queue.roles.consumer.taken, queue.roles.consumer.holder) == (False, "?")


async def test_unknown_age_is_unset(stub: QueueStub) -> None:
    queue = (await stub.Describe(pb.DescribeRequest(queue="q"), timeout=5)).queue
    assert not queue.counts.HasField("oldest_age")
    assert not queue.policy.HasField("time_to_live")


async def test_list(stub: QueueStub, engine: FakeEngine) -> None:
    reply = await stub.List(pb.ListRequest(prefix="a", page_size=7, page_token="t"), timeout=5)
    assert engine.last == ("a", 7, "t")
    assert [queue.name for queue in reply.queues] == ["q"]
    assert reply.next_page_token == "next"


async def test_update(stub: QueueStub, engine: FakeEngine) -> None:
    request = pb.UpdateRequest(queue="q", policy=queue_pb2.Policy(bound=9))
    request.update_mask.paths.append("bound")
    await stub.Update(request, timeout=5)
    assert engine.last == ("q", Policy(bound=9), ("bound",))


async def test_close_and_delete_wait_as_their_defaults_say(stub: QueueStub, engine: FakeEngine) -> None:
    assert (await stub.Close(pb.CloseRequest(queue="q"), timeout=60)).queue.closed
    assert engine.last == ("q", 1_000, 2_000)
    await stub.Delete(pb.DeleteRequest(queue="q"), timeout=60)
    assert engine.last == ("q", 5_000, 2_000)


async def test_put_answers_message_by_message(stub: QueueStub, engine: FakeEngine) -> None:
    engine.answers["put"] = [
        PutOutcome(PutCode.QUEUED, "a", 11, 1),
        PutOutcome(PutCode.DELAYED, "b"),
        PutOutcome(PutCode.KEPT, "c", 9, 2),
        PutOutcome(PutCode.REFUSED, "d", error=DuplicateMessage("known", metadata={"queue": "q", "id": "d"})),
        PutOutcome(PutCode.REFUSED, "e", error=QueueFull("full", metadata={"queue": "q", "bound": "4"})),
        PutOutcome(PutCode.REFUSED, "", error=QueueClosed("closed", metadata={"queue": "q"})),
        PutOutcome(PutCode.REFUSED, "", error=QueueDeleted("deleted", metadata={"queue": "q"})),
        PutOutcome(PutCode.REFUSED, "", error=OutcomeUnknown("lost", metadata={"cause": "STORE"})),
    ]
    reply = await stub.Put(pb.PutRequest(queue="q", messages=[message_pb2.Message()]), timeout=5)
    accepted = [(r.id, r.ticket, r.position, r.deduplicated, r.HasField("error")) for r in reply.results[:3]]
    assert accepted == [("a", 11, 1, False, False), ("b", 0, 0, False, False), ("c", 9, 2, True, False)]
    assert not any(result.body_differs for result in reply.results)
    refusals = [
        (r.id, message_pb2.Status(reason=r.error.reason).reason, r.error.code, dict(r.error.metadata))
        for r in reply.results[3:]
    ]
    assert refusals == [
        ("d", 10, grpc.StatusCode.ALREADY_EXISTS.value[0], {"queue": "q", "id": "d"}),
        ("e", 5, grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], {"queue": "q", "bound": "4"}),
        ("", 3, grpc.StatusCode.FAILED_PRECONDITION.value[0], {"queue": "q"}),
        ("", 6, grpc.StatusCode.NOT_FOUND.value[0], {"queue": "q"}),
        ("", 20, grpc.StatusCode.UNAVAILABLE.value[0], {"cause": "STORE"}),
    ]


async def test_a_defect_is_an_incident_also_where_it_befell_messages_and_one_for_all_of_them(
    stub: QueueStub, engine: FakeEngine
) -> None:
    defects = [InternalError(f"the store answered SECRET {number}") for number in range(2)]
    engine.answers["put"] = [
        PutOutcome(PutCode.QUEUED, "a", 11, 1),
        *(PutOutcome(PutCode.REFUSED, "", error=error) for error in (defects[0], defects[0], defects[1])),
    ]
    with structlog.testing.capture_logs() as logged:
        reply = await stub.Put(pb.PutRequest(queue="q", messages=[message_pb2.Message()]), timeout=5)
    told = [result.error for result in reply.results[1:]]
    assert {error.reason for error in told} == {error_reason_pb2.ERROR_REASON_INTERNAL}
    assert not any("SECRET" in error.message for error in told)
    first, again, other = (error.metadata["incident"] for error in told)
    assert first == again
    assert [(line["incident"], line["method"]) for line in logged] == [(first, "Put"), (other, "Put")]


async def test_put_tells_what_was_kept_and_what_replaced(stub: QueueStub, engine: FakeEngine) -> None:
    engine.answers["put"] = [
        PutOutcome(PutCode.KEPT, "a", 9, 2, body_differs=True),
        PutOutcome(PutCode.REPLACED, "b", 10, 3),
    ]
    kept, replaced = (await stub.Put(pb.PutRequest(queue="q", messages=[message_pb2.Message()]), timeout=5)).results
    assert kept == message_pb2.PutResult(id="a", ticket=9, position=2, deduplicated=True, body_differs=True)
    assert replaced == message_pb2.PutResult(id="b", ticket=10, position=3)


def delivery(**changes: Any) -> Delivery:
    known: dict[str, Any] = {
        "id": "m",
        "payload": b"body",
        "headers": message_pb2.Message(headers={"a": "1"}).SerializeToString(deterministic=True),
        "lease": "token",
        "lease_expires_at_ms": 1_700_000_000_456,
        "attempt": 2,
        "ticket": 77,
        "put_at_ms": 1_700_000_000_001,
        "waited_ms": 1_500,
    }
    return Delivery(**{**known, **changes})


async def test_get_asks_and_delivers(stub: QueueStub, engine: FakeEngine) -> None:
    engine.answers["get"] = GetOutcome(
        deliveries=[delivery(), delivery(headers=b"", put_at_ms=None, waited_ms=None)],
        settled=[Settlement("old", Settled.ACKED, 1)],
    )
    request = pb.GetRequest(
        queue="q", max_messages=2, wait=Duration(seconds=3), lease=Duration(seconds=9), consumer="c", ack=["old"]
    )
    reply = await stub.Get(request, timeout=60)
    assert engine.last == GetOrder(queue="q", max_messages=2, wait_ms=3_000, lease_ms=9_000, consumer="c", ack=("old",))
    first, second = reply.deliveries
    assert first == message_pb2.Delivery(
        message=message_pb2.Message(id="m", payload=b"body", headers={"a": "1"}),
        lease="token",
        lease_expires_at=at(1_700_000_000_456),
        attempt=2,
        ticket=77,
        put_at=at(1_700_000_000_001),
        waited=Duration(seconds=1, nanos=500_000_000),
    )
    assert not second.HasField("put_at")
    assert not second.HasField("waited")
    assert not second.message.headers
    assert [(s.lease, s.settled, s.attempts) for s in reply.settled] == [("old", message_pb2.SETTLED_ACKED, 1)]


async def test_no_time_at_all_is_told_as_zero_and_not_as_unknown(stub: QueueStub, engine: FakeEngine) -> None:
    engine.answers["get"] = GetOutcome(deliveries=[delivery(put_at_ms=0, waited_ms=0)])
    (first,) = (await stub.Get(pb.GetRequest(queue="q"), timeout=5)).deliveries
    assert first.HasField("put_at")
    assert first.HasField("waited")


async def test_headers_that_were_damaged_do_not_keep_a_message_from_its_consumer(
    stub: QueueStub, engine: FakeEngine
) -> None:
    engine.answers["get"] = GetOutcome(deliveries=[delivery(headers=b"\x1a\x06\n\x01a\x12\x01b\xff\xff")])
    (first,) = (await stub.Get(pb.GetRequest(queue="q"), timeout=5)).deliveries
    assert first.message == message_pb2.Message(id="m", payload=b"body")


async def test_an_empty_get_is_a_result(stub: QueueStub) -> None:
    assert await stub.Get(pb.GetRequest(queue="q"), timeout=5) == pb.GetResponse()


async def test_settling(stub: QueueStub, engine: FakeEngine) -> None:
    acked = await stub.Ack(pb.AckRequest(queue="q", leases=["a", "b"]), timeout=5)
    assert engine.last == ("q", ("a", "b"), b"")
    assert [(r.lease, r.settled) for r in acked.results] == [("a", 1), ("b", 1)]
    await stub.Delay(pb.DelayRequest(queue="q", leases=["a"], delay=Duration(seconds=2), reason="r"), timeout=5)
    assert engine.last == DelayOrder(queue="q", leases=("a",), delay_ms=2_000, reason="r")
    request = pb.DelayRequest(queue="q", leases=["a"], message_ids=["m", "~g-1"], delay=Duration())
    by_lease, *by_id = (await stub.Delay(request, timeout=5)).results
    assert engine.last == DelayOrder(queue="q", leases=("a",), message_ids=("m", "~g-1"), delay_ms=0)
    assert (by_lease.lease, by_lease.id, by_lease.settled) == ("a", "", message_pb2.SETTLED_RELEASED)
    assert [(r.lease, r.id, r.settled) for r in by_id] == [
        ("", "m", message_pb2.SETTLED_DELAYED),
        ("", "~g-1", message_pb2.SETTLED_DELAYED),
    ]
    assert by_id[0].available_at == at(1_700_000_000_002)
    await stub.Ack(pb.AckRequest(queue="q", leases=["a"], result=b"42"), timeout=5)
    assert engine.last == ("q", ("a",), b"42")
    extended = await stub.Extend(pb.ExtendRequest(queue="q", leases=["a"], lease=Duration(seconds=1)), timeout=5)
    assert engine.last == ("q", ("a",), 1_000)
    assert extended.results[0].available_at == at(1_700_000_000_001)
    assert not acked.results[0].HasField("available_at")


async def test_withdraw_answers_message_by_message(stub: QueueStub, engine: FakeEngine) -> None:
    finished = {"queue": "q", "id": "c", "outcome": Outcome.DONE.value}
    engine.answers["withdraw"] = [
        WithdrawOutcome("a"),
        WithdrawOutcome("b", MessageLeased("leased", metadata={"queue": "q", "id": "b"})),
        WithdrawOutcome("c", MessageFinished("done", metadata=finished)),
        WithdrawOutcome("~g-1", MessageNotFound("unknown", metadata={"queue": "q", "id": "~g-1"})),
    ]
    request = pb.WithdrawRequest(queue="q", message_ids=["a", "b", "c", "~g-1"])
    results = (await stub.Withdraw(request, timeout=5)).results
    assert engine.last == ("q", ("a", "b", "c", "~g-1"))
    assert [(r.id, r.withdrawn, r.error.code) for r in results] == [
        ("a", True, 0),
        ("b", False, grpc.StatusCode.FAILED_PRECONDITION.value[0]),
        ("c", False, grpc.StatusCode.FAILED_PRECONDITION.value[0]),
        ("~g-1", False, grpc.StatusCode.NOT_FOUND.value[0]),
    ]
    assert not results[0].HasField("error")
    assert dict(results[2].error.metadata) == finished


async def test_peek_can_leave_payloads_out(stub: QueueStub, engine: FakeEngine) -> None:
    peeked = Peeked(
        id="m",
        payload=b"body",
        headers=b"",
        ticket=5,
        position=3,
        failures=1,
        put_at_ms=1_700_000_000_001,
        last_error="boom",
    )
    engine.answers["peek"] = [peeked]
    (full,) = (await stub.Peek(pb.PeekRequest(queue="q", max_messages=4, from_position=3), timeout=5)).messages
    assert engine.last == ("q", 3, 4)
    assert full == pb.PeekedMessage(
        message=message_pb2.Message(id="m", payload=b"body"),
        ticket=5,
        position=3,
        failures=1,
        put_at=at(1_700_000_000_001),
        last_error="boom",
    )
    (bare,) = (await stub.Peek(pb.PeekRequest(queue="q", without_payloads=True), timeout=5)).messages
    assert (bare.message.id, bare.message.payload) == ("m", b"")
