"""Jobs on streams: each batch of Produce is a put, each reply of Consume hands out and settles."""

from __future__ import annotations

from collections.abc import Callable

from harness import ServiceProcess
from harness.otlp import OtlpReceiver
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Message
from tracing.conftest import MakeLine
from tracing.jobs import Caller, put
from wire.calls import Line
from wire.flows import LONG_S, Consuming, Flow, Producing


async def test_job_on_streams_is_one_trace(line: Line, receiver: OtlpReceiver) -> None:
    producer = Caller()
    async with Producing(line) as sending, Consuming(line, 1) as stream:
        await sending.put(Message(payload=b"x", id="job", headers=producer.headers))
        (token,) = await stream.tokens(1)
        await stream.extend(token)
        await stream.results(1)
        await stream.ack(token)
        await receiver.until("Ack")
    (sent,), (wait,), (got,), (work,), (ack,) = map(receiver.named, ("Produce", "Wait", "Consume", "Work", "Ack"))
    assert {one.trace_id for one in receiver.spans} == {producer.trace_id}
    assert {one.parent_id for one in (sent, wait, got, work)} == {producer.span_id}
    assert ack.parent_id == work.span_id
    assert (work.attributes["headway.settled"], work.attributes["headway.extended_count"]) == ("ACKED", 1)


async def test_each_batch_of_a_stream_is_a_span_also_the_one_that_ends_it(line: Line, receiver: OtlpReceiver) -> None:
    async with Producing(line) as stream:
        await stream.put(Message(payload=b"x", id="a"), Message(payload=b"x", id="a"))
        await stream.put(b"bare")
        await stream.send(Message(payload=b"x", id="~refused"))
        first, second, third = await receiver.until("Produce", 3)
    assert first.attributes["messaging.batch.message_count"] == 2
    assert first.attributes["headway.refused_count"] == 1
    assert not first.is_error
    assert second.attributes["headway.position"] == 2
    assert (third.attributes["error.type"], third.is_error) == ("FIELD_INVALID", True)
    assert len({one.trace_id for one in (first, second, third)}) == 3


async def test_messages_of_a_stream_carry_the_context_of_its_call(line: Line, receiver: OtlpReceiver) -> None:
    caller = Caller()
    async with Flow(line.stub.Produce(timeout=LONG_S, metadata=caller.metadata)) as stream:
        await stream.call.write(pb.ProduceRequest(queue=line.name, messages=[Message(payload=b"bare")]))
        delivery = await line.take_one(wait_ms=5_000)
    assert delivery.message.headers["traceparent"].split("-")[1] == caller.trace_id


async def test_stream_that_ends_gives_its_leases_back_and_says_so(line: Line, receiver: OtlpReceiver) -> None:
    await put(line, *(Message(payload=b"x", id=name) for name in "ab"), caller=Caller())
    async with Consuming(line, 2) as stream:
        token, _ = await stream.tokens(2)
        await stream.delay(token, delay_ms=60_000)
        await stream.results(1)
    works = await receiver.until("Work", 2)
    told = {one.attributes["messaging.message.id"]: one.attributes["headway.settled"] for one in works}
    assert told == {"a": "DELAYED", "b": "STREAM_ENDED"}
    (delay,) = receiver.named("Delay")
    assert delay.attributes["headway.settled"] == ["DELAYED"]


async def test_lease_of_a_stream_that_another_call_settles_is_settled_once(line: Line, receiver: OtlpReceiver) -> None:
    await put(line, Message(payload=b"x", id="job"), caller=Caller())
    async with Consuming(line, 1) as stream:
        (token,) = await stream.tokens(1)
        await line.ack(token)
        await receiver.until("Ack")
    await put(line, b"behind it")
    await receiver.until("Put", 2)
    assert [one.attributes["headway.settled"] for one in receiver.named("Work")] == ["ACKED"]


async def test_workers_behind_one_address_each_tell_their_part(
    make_service: Callable[..., ServiceProcess], receiver: OtlpReceiver, settings: dict[str, str], line_on: MakeLine
) -> None:
    service = make_service(flags=("--workers", "2"), HEADWAY_OTLP_ENDPOINT=receiver.endpoint, **settings)
    line = await line_on(service)
    for _ in range(40):  # connections are spread by the kernel
        await put(await line_on(service, line.name), b"x", caller=Caller())
    await receiver.until("Put", 40)
    assert len({one.resource["service.instance.id"] for one in receiver.spans}) == 2
    assert {one.resource["service.name"] for one in receiver.spans} == {"headway"}
