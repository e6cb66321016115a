"""One job over two languages, with the service's spans between: one trace, as a receiver of traces sees it."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from conformance.driving import DriverProcess
from conformance.languages import BUILD_S, LANGUAGES
from conformance.matching import encoded
from conformance.test_mixed import Client
from harness import ServiceProcess
from harness.otlp import OtlpReceiver

pytestmark = pytest.mark.timeout(3 * BUILD_S)
_W3C = TraceContextTextMapPropagator()


@pytest.fixture
async def receiver() -> AsyncIterator[OtlpReceiver]:
    """A receiver of this test's own."""
    async with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture
def service(short_dir: Path, receiver: OtlpReceiver) -> ServiceProcess:
    """A service that traces, on a store of its own."""
    env = {"HEADWAY_DATA_DIR": str(short_dir), "HEADWAY_OTLP_ENDPOINT": receiver.endpoint, "HEADWAY_TRACE_RATIO": "0"}
    return ServiceProcess(short_dir, env=env | {"OTEL_BSP_SCHEDULE_DELAY": "20"})


class _PlainIds(RandomIdGenerator):
    """Ids that are not said to be random: OpenTelemetry for Go, as of 1.39, reads no traceparent that says so."""

    def is_trace_id_random(self) -> bool:
        return False


@pytest.fixture
async def application(receiver: OtlpReceiver) -> AsyncIterator[TracerProvider]:
    """The application's own tracing, which goes to the same receiver."""
    provider = TracerProvider(shutdown_on_exit=False, id_generator=_PlainIds())
    exporter = OTLPSpanExporter(endpoint=receiver.endpoint, timeout=5)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=20))
    yield provider
    await asyncio.to_thread(provider.shutdown)


PAIRS = [pair for pair in itertools.product(LANGUAGES, repeat=2) if pair.count("python") == 1]


@pytest.mark.parametrize(("producer", "worker_language"), PAIRS)
async def test_job_is_one_trace_through_put_wait_work_and_ack_in_two_languages(  # noqa: PLR0917 - pytest gives them by name
    producer: str,
    worker_language: str,
    service: ServiceProcess,
    receiver: OtlpReceiver,
    application: TracerProvider,
    driver_of: Callable[[str], Awaitable[DriverProcess]],
) -> None:
    tracer = application.get_tracer("a shop")
    queue = f"orders-{uuid.uuid4().hex[:8]}"
    drivers = [await driver_of(name) for name in (producer, worker_language)]
    await asyncio.to_thread(service.start)
    try:
        puts, works = (Client(driver, queue, service.address) for driver in drivers)
        async with puts, works:
            await puts.ask("call", rpc="Create", request={"queue": queue})
            await works.ask("work", handle=works.name, queue=queue, concurrency=1)
            carrier: dict[str, str] = {}
            with tracer.start_as_current_span("order", kind=SpanKind.CLIENT):
                _W3C.inject(carrier)
                await puts.ask("put", queue=queue, messages=[{"id": "job", "payload": encoded(b"x")}], **carrier)
            event = await works.driver.event("handling", works.name)
            # What a handler does with the context that its lease offers.
            offered = _W3C.extract({"traceparent": event["traceparent"]})
            with tracer.start_as_current_span("pack", context=offered, kind=SpanKind.CONSUMER):
                await works.ask("finish", handle=works.name, lease=event["lease"], how="return")
            await works.ask("work_stop", handle=works.name)
            await works.driver.event("ended", works.name)
        await receiver.until("Work")
        await receiver.until("Ack")
        await receiver.until("pack")
        await receiver.until("order")
    finally:
        await asyncio.to_thread(service.stop)
    spans = {one.span_id: one for one in receiver.spans}
    assert len({one.trace_id for one in spans.values()}) == 1
    ((order,), (pack,), (wait,), (work,), (ack,)) = map(receiver.named, ("order", "pack", "Wait", "Work", "Ack"))
    (sent,) = [*receiver.named("Put"), *receiver.named("Produce")]
    (got,) = [*receiver.named("Get"), *receiver.named("Consume")]
    assert [one.span_id for one in spans.values() if not one.parent_id] == [order.span_id]
    assert {one.parent_id for one in (sent, wait, got, work, pack)} == {order.span_id}
    assert ack.parent_id == work.span_id
    assert order.start_ns <= sent.start_ns
    assert wait.end_ns == work.start_ns
    assert work.end_ns >= pack.start_ns
    assert len(spans) == len(("order", "put", "wait", "get", "work", "pack", "ack"))
