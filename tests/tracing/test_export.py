"""Where spans go: never in the way of calls, flushed at the end, and free of what is nobody's business."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import grpc

from harness import ServiceProcess, eventually, refused
from harness.otlp import OtlpReceiver
from harness.stores import free_port
from headway.v1.message_pb2 import Message
from tracing.conftest import MakeLine
from tracing.jobs import Caller, put, take
from wire.calls import INVALID_ARGUMENT, Line
from wire.flows import Consuming, Producing

MakeService = Callable[..., ServiceProcess]
NOT_TAKEN = "traces are not taken"


def said(service: ServiceProcess, what: str) -> int:
    """How often the log says it."""
    return Path(service.log).read_text().count(what)


async def job(line: Line, caller: Caller) -> None:
    """One from its put to its ack."""
    await put(line, Message(payload=b"x", id=f"job-{caller.span_id}"), caller=caller)
    await line.ack((await take(line)).lease)


async def test_endpoint_that_is_down_harms_no_call_and_is_told_once(
    make_service: MakeService, settings: dict[str, str], line_on: MakeLine
) -> None:
    service = make_service(HEADWAY_OTLP_ENDPOINT=f"http://127.0.0.1:{free_port()}", **settings)
    line = await line_on(service)
    await job(line, Caller())
    await eventually(lambda: said(service, NOT_TAKEN) == 1, within=15)
    await job(line, Caller())
    assert service.stop() == 0
    assert said(service, NOT_TAKEN) == 1
    lost = re.search(r"traces were lost.*spans=(\d+)", service.log.read_text())
    assert lost
    assert int(lost[1]) == 2 * len(("Put", "Wait", "Get", "Work", "Ack"))
    assert "Traceback" not in service.log.read_text()


async def test_receiver_that_comes_back_is_sent_to_again(
    receiver: OtlpReceiver, traced: ServiceProcess, line: Line
) -> None:
    receiver.refuses = grpc.StatusCode.INTERNAL
    await job(line, Caller())
    await eventually(lambda: said(traced, NOT_TAKEN) == 1, within=15)
    receiver.refuses = None
    caller = Caller()
    await job(line, caller)
    # What was done before may be sent once the receiver is back: an Ack alone tells nothing.
    await eventually(lambda: caller.trace_id in {one.trace_id for one in receiver.named("Ack")}, within=15)
    await eventually(lambda: said(traced, "traces are taken again") == 1)


async def test_what_is_not_sent_yet_is_sent_before_the_end(
    make_service: MakeService, receiver: OtlpReceiver, settings: dict[str, str], line_on: MakeLine
) -> None:
    late = settings | {"OTEL_BSP_SCHEDULE_DELAY": "3600000"}
    service = make_service(HEADWAY_OTLP_ENDPOINT=receiver.endpoint, **late)
    line = await line_on(service)
    await job(line, Caller())
    await put(line, Message(payload=b"x", id="leased"), caller=Caller())
    await take(line)
    assert receiver.spans == []
    service.signal(15)
    works = await receiver.until("Work", 2)
    assert [one.attributes["headway.settled"] for one in works] == ["ACKED", "UNSEEN"]


async def test_queue_that_is_full_drops_spans_and_says_how_many(
    make_service: MakeService, receiver: OtlpReceiver, settings: dict[str, str], line_on: MakeLine
) -> None:
    small = {"OTEL_BSP_MAX_QUEUE_SIZE": "4", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4", "OTEL_BSP_SCHEDULE_DELAY": "100"}
    service = make_service(HEADWAY_OTLP_ENDPOINT=receiver.endpoint, **(settings | small))
    line = await line_on(service)
    await put(line, *(Message(payload=b"x", id=str(n)) for n in range(100)), caller=Caller())
    await line.take(100)  # 100 waits at once
    service.signal(15)
    await eventually(lambda: said(service, "traces were lost") == 1, within=15)
    assert 0 < len(receiver.spans) < 100


async def test_no_payload_token_or_header_is_in_any_span(
    receiver: OtlpReceiver, traced: ServiceProcess, line: Line
) -> None:
    canary = "canary-7f3a"
    secret = {"key-" + canary: "value-" + canary}
    tokens: list[str] = []
    async with Producing(line) as sending:
        await sending.put(Message(payload=canary.encode(), id="b", headers=secret))
    await put(line, Message(payload=canary.encode(), id="a", headers=secret), caller=Caller(), producer=canary)
    for settle in (line.ack, line.delay):
        delivery = await take(line, consumer=canary)
        tokens.append(delivery.lease)
        await settle(delivery.lease)
    with refused("FIELD_INVALID", INVALID_ARGUMENT):
        await put(line, Message(payload=b"x", id="c", headers={canary + "\n": "x"}), caller=Caller())
    await line.delay(tokens[0], delay_ms=0, reason=canary)
    await line.ack(tokens[1], canary, result=canary.encode())
    async with Consuming(line, 1, consumer=canary) as stream:
        tokens += await stream.tokens(1)
        await stream.ack(canary)
        await stream.results(1)
    await receiver.until("Work", 3)
    await receiver.until("Ack", 3)
    assert traced.stop() == 0
    told = b"".join(receiver.raw)
    assert b"error.type" in told
    assert canary.encode() not in told
    assert not [token for token in tokens if token.encode() in told]


async def test_sdk_that_is_disabled_by_its_own_variable_records_nothing(
    make_service: MakeService, receiver: OtlpReceiver, settings: dict[str, str], line_on: MakeLine
) -> None:
    service = make_service(HEADWAY_OTLP_ENDPOINT=receiver.endpoint, OTEL_SDK_DISABLED="true", **settings)
    line = await line_on(service)
    await job(line, Caller())
    assert service.stop() == 0
    assert receiver.spans == []
