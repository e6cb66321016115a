"""One job, one trace: its put, its wait, the work on it and how that ended, as a receiver of traces sees them."""

from __future__ import annotations

from harness.otlp import Kind, OtlpReceiver
from headway.v1 import queue_pb2
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Message
from tracing.jobs import Caller, put, take
from wire.calls import Line, span
from wire.streams import Standing
from wire.watches import watching


async def test_job_is_one_trace_from_the_callers_span_to_the_ack(line: Line, receiver: OtlpReceiver) -> None:
    caller = Caller()
    (result,) = (await put(line, Message(payload=b"x", id="job"), caller=caller)).results
    delivery = await take(line)
    await line.ack(delivery.lease)
    await receiver.until("Ack")
    (sent,), (wait,), (got,), (work,), (ack,) = map(receiver.named, ("Put", "Wait", "Get", "Work", "Ack"))
    assert {one.trace_id for one in receiver.spans} == {caller.trace_id}
    assert sent.parent_id == caller.span_id
    assert {wait.parent_id, got.parent_id, work.parent_id} == {sent.span_id}
    assert ack.parent_id == work.span_id
    assert sent.name == f"Put {line.name}"
    assert (sent.kind, got.kind, ack.kind) == (Kind.SPAN_KIND_PRODUCER, Kind.SPAN_KIND_CONSUMER, Kind.SPAN_KIND_SERVER)
    assert sent.attributes["headway.position"] == result.position == 1
    assert {one.attributes["messaging.message.id"] for one in (sent, wait, got, work)} == {"job"}
    assert {one.attributes["messaging.system"] for one in receiver.spans} == {"headway"}
    assert {one.attributes["messaging.destination.name"] for one in receiver.spans} == {line.name}
    assert (work.attributes["headway.settled"], ack.attributes["headway.settled"]) == ("ACKED", ["ACKED"])


async def test_wait_is_from_the_put_to_the_lease_by_the_stores_clock(line: Line, receiver: OtlpReceiver) -> None:
    await put(line, Message(payload=b"x", id="job"), caller=Caller())
    delivery = await take(line)
    (wait,) = await receiver.until("Wait")
    assert wait.start_ns == delivery.put_at.ToMilliseconds() * 1_000_000
    waited_ns = delivery.waited.ToMilliseconds() * 1_000_000
    assert wait.end_ns - wait.start_ns == waited_ns
    await line.ack(delivery.lease)
    (work,) = await receiver.until("Work")
    assert work.start_ns == wait.end_ns


async def test_context_of_the_producer_stays_in_the_message_as_it_is(line: Line, receiver: OtlpReceiver) -> None:
    producer, call = Caller(), Caller()
    await put(line, Message(payload=b"x", headers=producer.headers | {"k": "v"}), caller=call)
    delivery = await take(line)
    assert dict(delivery.message.headers) == producer.headers | {"k": "v"}
    (sent,), (wait,) = await receiver.until("Put"), await receiver.until("Wait")
    assert (sent.trace_id, sent.links) == (call.trace_id, [producer.place])
    assert (wait.trace_id, wait.parent_id) == producer.place


async def test_without_a_call_context_the_put_belongs_to_its_messages_trace(line: Line, receiver: OtlpReceiver) -> None:
    producer = Caller()
    await put(line, *(Message(payload=b"x", headers=producer.headers) for _ in range(3)))
    (sent,) = await receiver.until("Put")
    assert (sent.trace_id, sent.parent_id) == producer.place
    assert sent.attributes["messaging.batch.message_count"] == 3


async def test_put_of_messages_that_are_not_all_of_one_job_is_a_trace_of_its_own(
    line: Line, receiver: OtlpReceiver
) -> None:
    """Producers batch what several tasks put: the one that is traced does not draw the others in."""
    caller = Caller()
    await put(line, Message(payload=b"x", id="a", headers=caller.headers), Message(payload=b"x", id="b"))
    of_id = {each.message.id: each.message.headers for each in await line.take(2)}
    (span,) = await receiver.until("Put")
    assert of_id["a"] == caller.headers
    assert span.links == [caller.place]
    assert span.trace_id != caller.trace_id
    assert caller.trace_id not in of_id["b"].get("traceparent", "")


async def test_repeated_delivery_is_a_trace_of_its_own_linked_to_the_job(line: Line, receiver: OtlpReceiver) -> None:
    caller = Caller()
    await put(line, Message(payload=b"x", id="job"), caller=caller)
    await line.delay((await take(line)).lease, delay_ms=0, reason="not now")
    await line.ack((await take(line)).lease)
    await receiver.until("Ack")
    (sent,), (first, second), (wait, again) = map(receiver.named, ("Put", "Work", "Wait"))
    _, got = receiver.named("Get")
    assert (first.attributes["headway.attempt"], second.attributes["headway.attempt"]) == (1, 2)
    assert (first.trace_id, wait.trace_id) == (caller.trace_id, caller.trace_id)
    assert first.attributes["headway.settled"] == "RELEASED"
    assert got.trace_id != caller.trace_id
    assert got.links == [sent.place]
    assert {(one.trace_id, one.parent_id) for one in (second, again)} == {got.place}
    assert [second.links, again.links] == [[sent.place]] * 2


async def test_batch_of_several_jobs_is_linked_to_each(line: Line, receiver: OtlpReceiver) -> None:
    callers = [Caller(), Caller()]
    for caller in callers:
        await put(line, Message(payload=b"x", headers=caller.headers))
    deliveries = await line.take(2)
    await line.ack(*(one.lease for one in deliveries))
    await receiver.until("Ack")
    (got,), (ack,), works = map(receiver.named, ("Get", "Ack", "Work"))
    assert (got.parent_id, got.links) == ("", [caller.place for caller in callers])
    assert got.attributes["messaging.batch.message_count"] == 2
    assert (ack.parent_id, sorted(ack.links)) == ("", sorted(one.place for one in works))
    assert {(one.trace_id, one.parent_id) for one in works} == {caller.place for caller in callers}


async def test_settling_call_with_a_context_is_its_callers_and_linked_to_the_work(
    line: Line, receiver: OtlpReceiver
) -> None:
    await put(line, Message(payload=b"x", id="job"), caller=Caller())
    worker = Caller()
    delivery = await take(line, caller=worker)
    await line.stub.Get(pb.GetRequest(queue=line.name, ack=[delivery.lease]), timeout=10, metadata=worker.metadata)
    (got, settle), (work,) = await receiver.until("Get", 2), await receiver.until("Work")
    assert {(one.trace_id, one.parent_id) for one in (got, settle)} == {worker.place}
    assert settle.attributes["headway.settled"] == ["ACKED"]
    assert settle.links == [work.place]


async def test_dead_message_ends_its_work_as_an_error(line: Line, receiver: OtlpReceiver) -> None:
    await line.update("retry.max_attempts", retry=queue_pb2.Retry(max_attempts=1))
    await put(line, Message(payload=b"x", id="job"), caller=Caller())
    await line.delay((await take(line)).lease, delay_ms=0)
    (work,) = await receiver.until("Work")
    assert (work.attributes["headway.settled"], work.is_error) == ("DEAD", True)


async def test_lease_that_nobody_ends_is_told_as_unseen_at_its_end(line: Line, receiver: OtlpReceiver) -> None:
    await put(line, Message(payload=b"x", id="job"), caller=Caller())
    delivery = await take(line, lease=span(100))
    (work,) = await receiver.until("Work")
    assert work.attributes["headway.settled"] == "UNSEEN"
    assert work.end_ns == delivery.lease_expires_at.ToMilliseconds() * 1_000_000


async def test_extended_lease_is_told_by_its_count_alone(line: Line, receiver: OtlpReceiver) -> None:
    await put(line, Message(payload=b"x", id="job"), caller=Caller())
    delivery = await take(line)
    for _ in range(2):
        await line.extend(delivery.lease, lease_ms=60_000)
    await line.ack(delivery.lease)
    (work,) = await receiver.until("Work")
    assert work.attributes["headway.extended_count"] == 2
    assert receiver.named("Extend") == []


async def test_positions_on_the_way_are_events_of_the_wait(line: Line, receiver: OtlpReceiver) -> None:
    await put(line, *(Message(payload=b"x", id=name) for name in ("a", "b", "c")), caller=Caller())
    async with watching(line, "c") as watch:
        await watch.position(3)
        for position in (2, 1):
            await take(line)
            await watch.position(position)
        delivery = await take(line)
    waits = await receiver.until("Wait", 3)
    wait = next(one for one in waits if one.attributes["messaging.message.id"] == "c")
    assert [event.attributes["headway.position"] for event in wait.events] == [3, 2, 1]
    assert {event.name for event in wait.events} == {"headway.moved"}
    assert delivery.message.id == "c"


async def test_place_in_the_consumer_line_is_told_by_the_grant(line: Line, receiver: OtlpReceiver) -> None:
    async with Standing(line) as first, Standing(line) as second:
        await second.position(2)
        await put(line, Message(payload=b"x", id="one"), caller=Caller())
        await first.granted()
        await second.position(1)
        job = Caller()
        await put(line, Message(payload=b"x", id="two"), caller=job)
        await second.granted()
        await receiver.until("WatchPosition", 2)
    got = next(one for one in receiver.spans if one.attributes.get("messaging.message.id") == "two" and one.events)
    assert [event.attributes["headway.position"] for event in got.events] == [2, 1]
    assert got.trace_id == job.trace_id
    works = await receiver.until("Work", 2)
    assert {one.attributes["headway.settled"] for one in works} == {"STREAM_ENDED"}
