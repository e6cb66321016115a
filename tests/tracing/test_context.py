"""Whose trace a message carries: the producer's, else the call's, else the put's own; and when it carries none."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
import redis

from harness import ServiceProcess
from harness.otlp import OtlpReceiver
from headway.v1 import message_pb2
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Message
from tracing.conftest import MakeLine
from tracing.jobs import Caller, put, take
from wire.calls import Keys, Line
from wire.flows import LONG_S, Flow

ALIKE = [b"%d" % i * 100 for i in range(10)]  # so many payloads of one size are cut out of the request's bytes
KEEP = message_pb2.ON_DUPLICATE_KEEP


def stored(keys: Keys) -> list[bytes | str]:
    """What is in the line, as a stock client of the pressure protocol gets it."""
    return keys.client.lrange(keys[""], 0, -1)


async def test_put_without_a_call_context_leaves_a_bare_payload_bare(
    line: Line, receiver: OtlpReceiver, keys: Keys
) -> None:
    await put(line, b"only a payload")
    (sent,) = await receiver.until("Put")
    assert sent.parent_id == ""
    assert stored(keys) == [b"only a payload"]


async def test_put_writes_the_calls_context_into_a_bare_message_too(line: Line, receiver: OtlpReceiver) -> None:
    caller = Caller()
    await put(line, b"only a payload", caller=caller)
    headers = dict((await take(line)).message.headers)
    (sent,) = await receiver.until("Put")
    traceparent = f"00-{caller.trace_id}-{sent.span_id}-01"
    assert headers == {"traceparent": traceparent, "tracestate": "vendor=opaque"}


@pytest.mark.parametrize("is_plain", ["false", "true"], ids=["fast", "plain"])
async def test_calls_context_is_in_all_of_a_batch_of_payloads_alike_in_size(
    make_service: Callable[..., ServiceProcess],
    receiver: OtlpReceiver,
    settings: dict[str, str],
    line_on: MakeLine,
    is_plain: str,
) -> None:
    service = make_service(
        HEADWAY_OTLP_ENDPOINT=receiver.endpoint, HEADWAY_TRACE_RATIO="0", HEADWAY_PLAIN=is_plain, **settings
    )
    line, caller = await line_on(service), Caller()
    await put(line, *ALIKE, caller=caller)
    async with Flow(line.stub.Produce(timeout=LONG_S, metadata=caller.metadata)) as stream:
        batch = [Message(payload=payload) for payload in ALIKE]
        await stream.call.write(pb.ProduceRequest(queue=line.name, messages=batch))
        await stream.until(lambda: stream.seen)
    for operation in ("Put", "Produce"):
        (sent,) = await receiver.until(operation)
        deliveries = (await line.get(len(ALIKE))).deliveries
        assert [one.message.payload for one in deliveries] == ALIKE
        traceparent = f"00-{caller.trace_id}-{sent.span_id}-01"
        assert [one.message.headers["traceparent"] for one in deliveries] == [traceparent] * len(ALIKE)


async def test_batch_of_payloads_alike_in_size_without_a_call_context_stays_bare(
    line: Line, receiver: OtlpReceiver, keys: Keys
) -> None:
    await put(line, *ALIKE)
    await receiver.until("Put")
    assert stored(keys) == ALIKE[::-1]


async def test_put_that_is_recorded_writes_its_own_context_into_what_is_no_bare_payload(
    line: Line, receiver: OtlpReceiver
) -> None:
    await put(line, Message(payload=b"x", id="job"))
    headers = dict((await take(line)).message.headers)
    (sent,) = await receiver.until("Put")
    # Not 03, which OpenTelemetry's SDK for Python says and the one for Go does not read.
    assert headers == {"traceparent": f"00-{sent.trace_id}-{sent.span_id}-01"}


@pytest.mark.parametrize(
    "headers",
    [{f"h{n}": "" for n in range(64)}, {"traceparent": "nonsense"}, {"tracestate": "a=b"}],
    ids=["full", "nonsense", "half"],
)
async def test_headers_that_leave_no_room_stay_as_they_are(line: Line, headers: dict[str, str]) -> None:
    (result,) = (await put(line, Message(payload=b"x", headers=headers), caller=Caller())).results
    assert not result.HasField("error")
    assert dict((await take(line)).message.headers) == headers


async def test_message_at_its_size_limit_is_accepted_without_a_context(
    make_service: Callable[..., ServiceProcess], receiver: OtlpReceiver, settings: dict[str, str], line_on: MakeLine
) -> None:
    service = make_service(
        HEADWAY_OTLP_ENDPOINT=receiver.endpoint, HEADWAY_MAX_MESSAGE_BYTES="1024", HEADWAY_TRACE_RATIO="1", **settings
    )
    line = await line_on(service)
    await put(line, Message(payload=bytes(1024 - 3), id="job"), caller=Caller())
    assert not (await take(line)).message.headers


async def test_same_message_in_another_trace_has_no_other_body(line: Line) -> None:
    for _ in range(2):
        answer = await put(line, Message(payload=b"x", id="job"), caller=Caller(), on_duplicate=KEEP)
    (result,) = answer.results
    assert (result.deduplicated, result.body_differs) == (True, False)
    (other,) = (
        await put(line, Message(payload=b"x", id="job", headers={"k": "v"}), caller=Caller(), on_duplicate=KEEP)
    ).results
    assert other.body_differs


async def test_call_context_that_says_no_is_obeyed_by_everything_that_follows(
    line: Line, receiver: OtlpReceiver
) -> None:
    caller = Caller(is_sampled=False)
    await put(line, Message(payload=b"x", id="job"), caller=caller)
    delivery = await take(line)
    await line.ack(delivery.lease)
    assert delivery.message.headers["traceparent"].startswith(f"00-{caller.trace_id}-")
    assert delivery.message.headers["traceparent"].endswith("-00")
    await put(line, b"recorded, after it")
    (sent,) = await receiver.until("Put")
    assert [one.name for one in receiver.spans] == [sent.name]


async def test_context_of_a_call_by_http_is_the_calls_context(
    make_service: Callable[..., ServiceProcess], receiver: OtlpReceiver, settings: dict[str, str], line_on: MakeLine
) -> None:
    service = make_service(
        HEADWAY_OTLP_ENDPOINT=receiver.endpoint, HEADWAY_HTTP_LISTEN="127.0.0.1:0", HEADWAY_TRACE_RATIO="0", **settings
    )
    line, caller = await line_on(service), Caller()
    http = service.addresses[1]
    async with httpx.AsyncClient(base_url=http) as client:
        answer = await client.post(
            "/headway.v1.QueueService/Put",
            json={"queue": line.name, "messages": [{"payload": ""}]},
            headers=dict(caller.metadata),
        )
    assert answer.status_code == 200, answer.text
    (sent,) = await receiver.until("Put")
    assert (sent.trace_id, sent.parent_id) == caller.place


async def test_job_that_its_caller_records_is_recorded_whatever_the_ratio(
    make_service: Callable[..., ServiceProcess], receiver: OtlpReceiver, settings: dict[str, str], line_on: MakeLine
) -> None:
    service = make_service(HEADWAY_OTLP_ENDPOINT=receiver.endpoint, HEADWAY_TRACE_RATIO="0", **settings)
    line = await line_on(service)
    await put(line, Message(payload=b"x", id="nobody's"))
    await line.ack((await take(line)).lease)
    caller = Caller()
    await put(line, Message(payload=b"x", id="job"), caller=caller)
    await line.delay((await take(line)).lease, delay_ms=0)
    await line.ack((await take(line)).lease)
    await receiver.until("Work", 2)
    await receiver.until("Ack")
    assert len(receiver.named("Get")) == 2
    assert {one.attributes.get("messaging.message.id") for one in receiver.spans} <= {"job", None}


async def test_without_an_endpoint_nothing_is_sent_and_headers_are_untouched(
    make_service: Callable[..., ServiceProcess],
    receiver: OtlpReceiver,
    settings: dict[str, str],
    line_on: MakeLine,
    redis_client: redis.Redis,
) -> None:
    service = make_service(OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint, HEADWAY_TRACE_RATIO="1", **settings)
    line = await line_on(service)
    await put(line, b"bare", Message(payload=b"x", headers={"k": "v"}), caller=Caller())
    assert stored(Keys(redis_client, settings["PRESSURE_PREFIX"], line.name))[-1] == b"bare"
    assert not (await take(line)).message.headers
    assert dict((await take(line)).message.headers) == {"k": "v"}
    assert service.stop() == 0
    assert receiver.spans == []
