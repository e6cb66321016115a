"""The trace that a message belongs to: into its headers on put, out of them for whoever works on it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

import headway
from client.fake_service import FakeQueue, FakeService

TRACE_ID, SPAN_ID = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = "00-11111111111111111111111111111111-2222222222222222-01"


@pytest.fixture
def span() -> Iterator[None]:
    """A span that is current."""
    context = SpanContext(
        TRACE_ID, SPAN_ID, is_remote=False, trace_flags=TraceFlags(1), trace_state=TraceState([("vendor", "opaque")])
    )
    with trace.use_span(NonRecordingSpan(context)):
        yield


def headers(made: FakeQueue) -> list[dict[str, str]]:
    return [dict(held.message.headers) for held in made.line]


async def test_put_carries_the_current_span(queue: headway.Queue, made: FakeQueue, span: None) -> None:
    await queue.put(b"one", headers={"k": "v"})
    await queue.put_many([b"two"])
    async with queue.producer() as producer:
        await producer.put(b"three")
    carried = {"traceparent": PARENT, "tracestate": "vendor=opaque"}
    assert headers(made) == [{"k": "v"} | carried, carried, carried]


async def test_headers_of_the_caller_and_its_message_stay(queue: headway.Queue, made: FakeQueue, span: None) -> None:
    await queue.put(b"one", headers={"traceparent": OTHER})
    message = headway.Message(payload=b"two")
    await queue.put(message)
    assert headers(made)[0] == {"traceparent": OTHER}
    assert headers(made)[1]["traceparent"] == PARENT
    assert not message.headers


@pytest.mark.parametrize("is_full", [False, True])
async def test_message_that_is_full_without_the_trace_goes_without_it(
    queue: headway.Queue, made: FakeQueue, span: None, is_full: bool
) -> None:
    given = {f"k{n}": "v" for n in range(63 if is_full else 62)}
    await queue.put(b"one", headers=given)
    await queue.put_many([headway.Message(headers=given)])
    async with queue.producer() as producer:
        await producer.put(b"three", headers=given)
    assert [len(each) for each in headers(made)] == [63 if is_full else 64] * 3


@pytest.mark.parametrize("most_bytes", [0, 1000], ids=["as by default", "as told"])
async def test_message_that_the_trace_would_make_too_large_goes_without_it(
    service: FakeService, queue: headway.Queue, made: FakeQueue, span: None, most_bytes: int
) -> None:
    """Also one that is larger than by default is told of its trace, for a service may take larger ones."""
    service.limits.max_message_bytes = most_bytes
    service.limits.max_request_bytes = 4 * 1024 * 1024
    most = most_bytes or 1024 * 1024
    traced = len("traceparent") + len(PARENT) + len("tracestate") + len("vendor=opaque")
    payloads = [b"x" * (size - len("\u00e4".encode())) for size in (most - traced, most - traced + 1, most, most + 1)]
    messages = [headway.Message(id="\u00e4", payload=payload) for payload in payloads]
    await queue.put_many(messages, on_duplicate="replace")
    async with queue.producer(on_duplicate="replace", max_batch=1) as producer:
        for message in messages:
            await producer.put(message)
    for payload in payloads:
        await queue.put(payload, id="\u00e4", on_duplicate="replace")
    put = [m for name in ("Put", "Produce") for request in service.requests(name) for m in request.messages]
    assert [bool(m.headers) for m in put] == [True, False, False, True] * 3


async def test_put_asks_once_what_the_service_takes(service: FakeService, queue: headway.Queue, span: None) -> None:
    await queue.put(b"one")
    await queue.put(b"two")
    assert len(service.requests("GetServerInfo")) == 1


async def test_without_a_span_there_are_no_headers(service: FakeService, queue: headway.Queue, made: FakeQueue) -> None:
    await queue.put(b"one")
    assert headers(made) == [{}]
    assert not service.requests("GetServerInfo")


async def test_lease_offers_the_context(queue: headway.Queue, made: FakeQueue) -> None:
    await queue.put(b"one", headers={"traceparent": PARENT, "tracestate": "vendor=opaque"})
    await queue.put(b"two")
    async with queue.lease() as lease:
        assert lease is not None
        context = trace.get_current_span(lease.trace_context).get_span_context()
        assert (context.trace_id, context.span_id, context.is_remote) == (TRACE_ID, SPAN_ID, True)
        assert context.trace_state == {"vendor": "opaque"}
    async with queue.lease() as lease:
        assert lease is not None
        assert lease.trace_context is None


def test_client_needs_no_opentelemetry() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None  # as if it were not installed
import headway._producing, headway._queue
from headway.core.trace import context_of, traced
message = headway.Message(headers={"traceparent": "%s"})
assert traced(message) is message
assert traced(headway.Message()) == headway.Message()
assert context_of(message.headers) is None
"""
    subprocess.run([sys.executable, "-c", program % PARENT], check=True, timeout=30)
