"""What KEDA is told, by which it scales workers: asked with the stub of its own interface."""

from __future__ import annotations

import asyncio
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from harness import ServiceProcess, StoreServer, eventually, refused
from headway.v1 import admin_service_pb2, admin_service_pb2_grpc, queue_service_pb2_grpc
from headwayd.rpc.keda import externalscaler_pb2 as keda
from headwayd.rpc.keda import externalscaler_pb2_grpc
from wire.calls import INVALID_ARGUMENT, NOT_FOUND, SLACK_S, UNAVAILABLE, Line
from wire.watches import watching_queue

pytestmark = pytest.mark.any_store

METRICS = {"depth": "headway-depth", "oldest_age": "headway-oldest-age", "predicted_wait": "headway-predicted-wait"}


@pytest.fixture(scope="module", params=["fast", "plain"])
def scaling_service(
    request: pytest.FixtureRequest, store_server: StoreServer, new_folder: Callable[[str], Path]
) -> Iterator[ServiceProcess]:
    """A service that answers KEDA, whichever way it takes calls."""
    env = {"HEADWAY_REDIS_URL": store_server.url, "PRESSURE_PREFIX": f"p{uuid.uuid4().hex[:8]}"}
    process = ServiceProcess(
        new_folder("keda"), env=env | {"HEADWAY_KEDA": "true", "HEADWAY_PLAIN": str(request.param == "plain")}
    )
    try:
        yield process.start()
    finally:
        process.stop()


@pytest.fixture
async def opened(
    scaling_service: ServiceProcess, connect: Callable[[str], grpc.aio.Channel]
) -> AsyncIterator[grpc.aio.Channel]:
    async with connect(scaling_service.address) as channel:
        yield channel


@pytest.fixture
async def jobs(opened: grpc.aio.Channel) -> Line:
    """A queue whose workers are scaled."""
    stub = queue_service_pb2_grpc.QueueServiceStub(opened)
    made = Line(stub, f"jobs-{uuid.uuid4().hex[:8]}", admin_service_pb2_grpc.AdminServiceStub(opened))
    await made.create()
    return made


@pytest.fixture
def scaler(opened: grpc.aio.Channel) -> externalscaler_pb2_grpc.ExternalScalerAsyncStub:
    return externalscaler_pb2_grpc.ExternalScalerStub(opened)


def trigger(queue: str, metric: str = "depth", target: str = "5") -> keda.ScaledObjectRef:
    metadata = {"scalerAddress": "headway:7420", "queue": queue, "metric": metric, "target": target}
    return keda.ScaledObjectRef(name="worker", namespace="work", scalerMetadata=metadata)


async def value_of(
    scaler: externalscaler_pb2_grpc.ExternalScalerAsyncStub, queue: str, metric: str = "depth"
) -> keda.MetricValue:
    request = keda.GetMetricsRequest(scaledObjectRef=trigger(queue, metric), metricName=METRICS[metric])
    (value,) = (await scaler.GetMetrics(request, timeout=SLACK_S)).metricValues
    assert value.metricName == METRICS[metric]
    assert 0 <= value.metricValue - value.metricValueFloat < 1
    return value


async def told_by(stream: Any) -> bool:
    """What the stream tells next."""
    told: keda.IsActiveResponse = await stream.read()
    return told.result


def test_names_and_numbers_are_those_of_keda() -> None:
    """As https://github.com/kedacore/keda/blob/main/pkg/scalers/externalscaler/externalscaler.proto has them."""
    service = keda.DESCRIPTOR.services_by_name["ExternalScaler"]
    assert service.full_name == "externalscaler.ExternalScaler"
    calls = {
        each.name: (each.input_type.name, each.output_type.name, each.server_streaming) for each in service.methods
    }
    assert calls == {
        "IsActive": ("ScaledObjectRef", "IsActiveResponse", False),
        "StreamIsActive": ("ScaledObjectRef", "IsActiveResponse", True),
        "GetMetricSpec": ("ScaledObjectRef", "GetMetricSpecResponse", False),
        "GetMetrics": ("GetMetricsRequest", "GetMetricsResponse", False),
    }
    spec = keda.MetricSpec(metricName="m", targetSize=2, targetSizeFloat=1.5)
    assert spec.SerializeToString() == b"\x0a\x01m\x10\x02\x19\0\0\0\0\0\0\xf8\x3f"
    value = keda.MetricValue(metricName="m", metricValue=2, metricValueFloat=1.5)
    assert value.SerializeToString() == spec.SerializeToString()
    reference = keda.ScaledObjectRef(name="a", namespace="b", scalerMetadata={"k": "v"})
    assert reference.SerializeToString() == b"\x0a\x01a\x12\x01b\x1a\x06\x0a\x01k\x12\x01v"
    request = keda.GetMetricsRequest(scaledObjectRef=reference, metricName="m")
    assert request.SerializeToString() == b"\x0a\x0e" + reference.SerializeToString() + b"\x12\x01m"
    assert keda.IsActiveResponse(result=True).SerializeToString() == b"\x08\x01"
    assert keda.GetMetricsResponse(metricValues=[value]).SerializeToString()[0] == 0x0A
    assert keda.GetMetricSpecResponse(metricSpecs=[spec]).SerializeToString()[0] == 0x0A


async def test_the_depth_follows_the_queue(jobs: Line, scaler: externalscaler_pb2_grpc.ExternalScalerAsyncStub) -> None:
    async def told() -> tuple[float, bool]:
        value = await value_of(scaler, jobs.name)
        active = await scaler.IsActive(trigger(jobs.name), timeout=SLACK_S)
        return value.metricValueFloat, active.result

    assert await told() == (0, False)
    await jobs.put(b"1", b"2", b"3")
    assert await told() == (3, True)
    leases = [delivery.lease for delivery in await jobs.take(2)]
    assert await told() == (3, True), "what is worked on counts"
    await jobs.ack(*leases)
    assert await told() == (1, True)
    await jobs.take_one()
    assert await told() == (1, True), "the last one that works is not taken away"


async def test_a_paused_queue_has_nothing_for_workers_but_what_they_hold(
    jobs: Line, scaler: externalscaler_pb2_grpc.ExternalScalerAsyncStub
) -> None:
    await jobs.put(b"1", b"2")
    assert jobs.admin is not None
    await jobs.admin.Pause(admin_service_pb2.PauseRequest(queue=jobs.name), timeout=SLACK_S)
    assert (await value_of(scaler, jobs.name)).metricValueFloat == 0
    assert (await value_of(scaler, jobs.name, "oldest_age")).metricValueFloat == 0
    assert (await value_of(scaler, jobs.name, "predicted_wait")).metricValueFloat == 0
    assert not (await scaler.IsActive(trigger(jobs.name), timeout=SLACK_S)).result


async def test_the_oldest_age_grows_while_nobody_works(
    jobs: Line, scaler: externalscaler_pb2_grpc.ExternalScalerAsyncStub
) -> None:
    assert (await value_of(scaler, jobs.name, "oldest_age")).metricValueFloat == 0
    await jobs.put(b"1")

    async def grows() -> bool:
        first = await value_of(scaler, jobs.name, "oldest_age")
        second = await value_of(scaler, jobs.name, "oldest_age")
        assert first.metricValueFloat <= second.metricValueFloat < SLACK_S
        return 0 < first.metricValueFloat < second.metricValueFloat

    await eventually(grows)


async def test_the_predicted_wait_is_the_services_own_estimate(
    jobs: Line, scaler: externalscaler_pb2_grpc.ExternalScalerAsyncStub
) -> None:
    await jobs.put(*[b"x"] * 200)
    # Nobody has worked yet: there is no estimate, and the one at the head has waited so long already.
    first = await value_of(scaler, jobs.name, "predicted_wait")
    oldest = await value_of(scaler, jobs.name, "oldest_age")
    assert 0 <= first.metricValueFloat <= oldest.metricValueFloat

    working = asyncio.create_task(_work(jobs))
    try:

        async def agrees() -> bool:
            async with watching_queue(jobs, interval_ms=100) as watched:
                eta = (await watched.next()).eta
            value = await value_of(scaler, jobs.name, "predicted_wait")
            assert eta.known
            expected_s = eta.p90.ToMilliseconds() / 1_000
            # Both look at the same estimator, a moment apart, and it has moved on a little.
            return expected_s / 2 < value.metricValueFloat < expected_s * 2 and value.metricValueFloat > 1

        await eventually(agrees, within=SLACK_S)
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def _work(jobs: Line) -> None:
    while True:
        delivery = await jobs.take_one()
        await asyncio.sleep(0.05)  # what the work takes
        await jobs.ack(delivery.lease)


@pytest.mark.parametrize("metric", METRICS)
async def test_the_target_is_the_triggers(
    jobs: Line, scaler: externalscaler_pb2_grpc.ExternalScalerAsyncStub, metric: str
) -> None:
    (spec,) = (await scaler.GetMetricSpec(trigger(jobs.name, metric, "2.5"), timeout=SLACK_S)).metricSpecs
    assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == (METRICS[metric], 3, 2.5)


async def test_a_stream_turns_when_a_message_is_put_and_when_all_is_done(
    jobs: Line, scaler: externalscaler_pb2_grpc.ExternalScalerAsyncStub
) -> None:
    stream = scaler.StreamIsActive(trigger(jobs.name), timeout=SLACK_S)
    assert not await told_by(stream)
    await jobs.put(b"1", b"2")
    assert await told_by(stream)
    await jobs.ack(*[delivery.lease for delivery in await jobs.take(2)])
    assert not await told_by(stream)
    await jobs.delete()
    with refused("QUEUE_DELETED", NOT_FOUND):
        await stream.read()


async def test_a_queue_that_is_not_there_is_not_found(
    scaler: externalscaler_pb2_grpc.ExternalScalerAsyncStub,
) -> None:
    for metric in METRICS:
        with refused("QUEUE_NOT_FOUND", NOT_FOUND) as said:
            await value_of(scaler, "nothing", metric)
        assert said.metadata == {"queue": "nothing"}
    with refused("QUEUE_NOT_FOUND", NOT_FOUND):
        await scaler.IsActive(trigger("nothing"), timeout=SLACK_S)
    with refused("QUEUE_NOT_FOUND", NOT_FOUND):
        await scaler.StreamIsActive(trigger("nothing"), timeout=SLACK_S).read()


@pytest.mark.parametrize(
    ("metadata", "fields"),
    [
        ({"queue": ""}, ["scalerMetadata.queue"]),
        ({"metric": ""}, ["scalerMetadata.metric"]),
        ({"metric": "lenght"}, ["scalerMetadata.metric"]),
        *(({"target": target}, ["scalerMetadata.target"]) for target in ("", "0", "-1", "nan", "inf", "1e13", "5s")),
        ({"metric": "x", "target": "9" * 33}, ["scalerMetadata.metric", "scalerMetadata.target"]),
    ],
    ids=str,
)
async def test_metadata_that_makes_no_sense_is_refused_by_every_call(
    scaler: externalscaler_pb2_grpc.ExternalScalerAsyncStub, metadata: dict[str, str], fields: list[str]
) -> None:
    wrong = trigger("jobs")
    wrong.scalerMetadata.update(metadata)
    for call in (scaler.IsActive, scaler.GetMetricSpec):
        with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
            await call(wrong, timeout=SLACK_S)
        assert list(said.violations) == fields
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await scaler.GetMetrics(keda.GetMetricsRequest(scaledObjectRef=wrong), timeout=SLACK_S)
    assert list(said.violations) == fields
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await scaler.StreamIsActive(wrong, timeout=SLACK_S).read()
    assert list(said.violations) == fields


async def test_a_name_that_no_queue_can_have_is_refused(
    scaler: externalscaler_pb2_grpc.ExternalScalerAsyncStub,
) -> None:
    with refused("NAME_REFUSED", INVALID_ARGUMENT):
        await scaler.IsActive(trigger("jobs:closed"), timeout=SLACK_S)


async def test_another_metric_than_the_triggers_is_refused(
    jobs: Line, scaler: externalscaler_pb2_grpc.ExternalScalerAsyncStub
) -> None:
    request = keda.GetMetricsRequest(scaledObjectRef=trigger(jobs.name), metricName="headway-oldest-age")
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await scaler.GetMetrics(request, timeout=SLACK_S)
    assert list(said.violations) == ["metricName"]


async def test_a_service_that_goes_down_ends_the_stream_and_takes_no_more_questions(
    make_service: Callable[..., ServiceProcess], store_server: StoreServer, connect: Callable[[str], grpc.aio.Channel]
) -> None:
    service = make_service(
        HEADWAY_REDIS_URL=store_server.url, PRESSURE_PREFIX=f"p{uuid.uuid4().hex[:8]}", HEADWAY_KEDA="true"
    )
    async with connect(service.address) as channel:
        jobs = Line(queue_service_pb2_grpc.QueueServiceStub(channel), "jobs")
        await jobs.create()
        await jobs.put(b"1")
        delivery = await jobs.take_one()
        scaler = externalscaler_pb2_grpc.ExternalScalerStub(channel)
        await value_of(scaler, "jobs", "predicted_wait")  # is watched from now on
        stream = scaler.StreamIsActive(trigger("jobs"), timeout=SLACK_S)
        assert await told_by(stream)
        service.signal(signal.SIGTERM)
        with refused("SHUTTING_DOWN", UNAVAILABLE):
            await stream.read()
        assert delivery.lease
    assert await asyncio.to_thread(service.wait) == 0


async def test_unless_asked_for_nobody_answers_keda(channel: grpc.aio.Channel) -> None:
    scaler = externalscaler_pb2_grpc.ExternalScalerStub(channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await scaler.IsActive(trigger("jobs"), timeout=SLACK_S)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
