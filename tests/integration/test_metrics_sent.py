"""The same metrics over OTLP, to a receiver as a collector is one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.metrics.v1 import metrics_pb2

from harness import ServiceProcess, eventually
from harness.scraping import scrape
from headwayd.telemetry import metric_names
from headwayd.telemetry.metric_names import Kind
from wire.calls import line_at

MakeService = Callable[..., ServiceProcess]
JOBS = {"queue_namespace": "default", "queue": "jobs"}
NOT_TAKEN = "metrics are not taken"


def said(service: ServiceProcess, what: str) -> int:
    """How often the log says it."""
    return service.log.read_text().count(what)


class Receiver(metrics_service_pb2_grpc.MetricsServiceServicer):
    """Keeps what it is sent. `is_refusing`: takes nothing, and counts how often."""

    def __init__(self) -> None:
        self.address = ""
        self.sent: list[metrics_pb2.ResourceMetrics] = []
        self.is_refusing = False
        self.refused_count = 0

    async def Export(  # noqa: N802 - the protocol's name
        self, request: metrics_service_pb2.ExportMetricsServiceRequest, context: Any
    ) -> metrics_service_pb2.ExportMetricsServiceResponse:
        if self.is_refusing:
            self.refused_count += 1
            await context.abort(grpc.StatusCode.INTERNAL, "as the test says")  # which is not repeated at once
        self.sent += request.resource_metrics
        return metrics_service_pb2.ExportMetricsServiceResponse()

    @property
    def latest(self) -> dict[str, metrics_pb2.Metric]:
        """What was sent last, by name."""
        if not self.sent:
            return {}
        return {metric.name: metric for scope in self.sent[-1].scope_metrics for metric in scope.metrics}

    def number(self, name: str, **labels: str) -> float:
        """Of one series."""
        metric = self.latest.get(name, metrics_pb2.Metric())
        points = [*metric.sum.data_points, *metric.gauge.data_points]
        found = [point for point in points if attributes_of(point) == labels]
        assert len(found) <= 1
        return (found[0].as_double or found[0].as_int) if found else 0.0


def attributes_of(point: metrics_pb2.NumberDataPoint | metrics_pb2.HistogramDataPoint) -> dict[str, str]:
    return {each.key: each.value.string_value for each in point.attributes}


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    one = Receiver()
    server = grpc.aio.server()
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(one, server)  # type: ignore[no-untyped-call]
    one.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield one
    await server.stop(None)


def endpoint(receiver: Receiver) -> dict[str, str]:
    return {"HEADWAY_OTLP_ENDPOINT": f"http://{receiver.address}", "HEADWAY_METRICS_INTERVAL": "1s"}


async def test_what_is_sent_is_what_is_scraped(
    receiver: Receiver, make_service: MakeService, connect: Callable[[str], grpc.aio.Channel]
) -> None:
    service = await asyncio.to_thread(make_service, HEADWAY_HTTP_LISTEN="127.0.0.1:0", **endpoint(receiver))
    async with line_at(service.address, "jobs", connect) as line:
        await line.create()
        await line.put(b"1", b"2", b"3")
        await line.ack((await line.take_one()).lease)

    def are_sent() -> bool:
        number = receiver.number
        return (
            number("headway_messages_put_total", **JOBS) == 3
            and number("headway_messages_settled_total", **JOBS, how="acked") == 1
            and number("headway_queue_messages", **JOBS, state="waiting") == 2
            and number("headway_calls_total", method="Put", code="OK") == 1
            and number("headway_ready") == 1
        )

    await eventually(are_sent, within=15)
    told, sent = await scrape(service), receiver.latest
    assert sent.keys() <= {metric.name for metric in metric_names.ALL}
    for metric in metric_names.ALL:
        if told.has(metric.name.removeprefix("headway_") + ("_count" if metric.kind is Kind.HISTOGRAM else "")):
            kind = {Kind.COUNTER: "sum", Kind.GAUGE: "gauge", Kind.HISTOGRAM: "histogram"}[metric.kind]
            assert sent[metric.name].WhichOneof("data") == kind, metric.name
    assert sent["headway_messages_put_total"].sum.is_monotonic
    [waits] = [one for one in sent["headway_wait_seconds"].histogram.data_points if attributes_of(one) == JOBS]
    assert (waits.count, sum(waits.bucket_counts)) == (1, 1)
    assert len(waits.bucket_counts) == len(waits.explicit_bounds) + 1
    assert not waits.HasField("min")
    resource = {each.key: each.value.string_value for each in receiver.sent[-1].resource.attributes}
    assert resource["service.name"] == "headway"
    assert resource["service.instance.id"].split("/")[2] == str(service.pid)


async def test_the_variables_of_the_sdk_are_in_force(receiver: Receiver, make_service: MakeService) -> None:
    told = {"OTEL_SERVICE_NAME": "orders-queue", "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test"}
    service = await asyncio.to_thread(make_service, **endpoint(receiver), **told)
    await eventually(lambda: bool(receiver.sent), within=15)
    resource = {each.key: each.value.string_value for each in receiver.sent[-1].resource.attributes}
    assert resource["service.name"] == "orders-queue"
    assert resource["deployment.environment.name"] == "test"
    assert resource["service.instance.id"].split("/")[2] == str(service.pid)


async def test_nothing_is_sent_where_the_sdk_is_disabled(receiver: Receiver, make_service: MakeService) -> None:
    service = await asyncio.to_thread(make_service, **endpoint(receiver), OTEL_SDK_DISABLED="true")
    await asyncio.sleep(2)  # two intervals
    assert await asyncio.to_thread(service.stop) == 0
    assert receiver.sent == []


async def test_the_last_numbers_are_sent_at_the_end(
    receiver: Receiver, make_service: MakeService, connect: Callable[[str], grpc.aio.Channel]
) -> None:
    settings = endpoint(receiver) | {"HEADWAY_METRICS_INTERVAL": "1h"}
    service = await asyncio.to_thread(make_service, **settings)
    assert service.http == ""  # who is sent metrics needs no port
    async with line_at(service.address, "jobs", connect) as line:
        await line.create()
        await line.put(b"1")
    assert receiver.sent == []
    assert await asyncio.to_thread(service.stop) == 0
    assert receiver.number("headway_messages_put_total", **JOBS) == 1


async def test_a_receiver_that_is_away_harms_nobody(
    make_service: MakeService, connect: Callable[[str], grpc.aio.Channel]
) -> None:
    service = await asyncio.to_thread(
        make_service, HEADWAY_OTLP_ENDPOINT="http://127.0.0.1:1", HEADWAY_METRICS_INTERVAL="1s"
    )
    async with line_at(service.address, "jobs", connect) as line:
        await line.create()
        await eventually(lambda: said(service, NOT_TAKEN) == 1, within=30)
        await line.put(b"1")
    assert await asyncio.to_thread(service.stop) == 0


async def test_that_metrics_are_not_taken_is_told_once_and_so_is_its_end(
    receiver: Receiver, make_service: MakeService
) -> None:
    receiver.is_refusing = True
    service = await asyncio.to_thread(make_service, **endpoint(receiver))
    # The third is sent behind what was said of the second.
    await eventually(lambda: receiver.refused_count >= 3, within=30)
    assert said(service, NOT_TAKEN) == 1
    receiver.is_refusing = False
    await eventually(lambda: said(service, "metrics are taken again") == 1, within=30)
    assert said(service, NOT_TAKEN) == 1
