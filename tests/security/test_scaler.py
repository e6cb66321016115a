"""KEDA's questions need credentials as all others do, and see the caller's own namespace only."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from harness import ServiceProcess, refused
from headway.v1 import queue_service_pb2, queue_service_pb2_grpc
from headwayd.rpc.keda import externalscaler_pb2 as keda
from headwayd.rpc.keda import externalscaler_pb2_grpc
from security.callers import OTHERS, TEAM, write_callers
from wire.calls import SLACK_S

pytestmark = pytest.mark.any_store


async def test_only_those_who_may_look_at_a_queue_learn_what_its_workers_have_to_do(
    start: Callable[..., ServiceProcess], connect: Callable[[str], grpc.aio.Channel], tmp_path: Path
) -> None:
    callers = write_callers(tmp_path / "callers.toml", [*TEAM.values(), *OTHERS.values()])
    prefix = f"g{uuid.uuid4().hex[:8]}"
    service = start(HEADWAY_AUTH_FILE=str(callers), HEADWAY_KEDA="true", PRESSURE_PREFIX=prefix)
    trigger = keda.ScaledObjectRef(scalerMetadata={"queue": "jobs", "metric": "predicted_wait", "target": "5"})
    asked = keda.GetMetricsRequest(scaledObjectRef=trigger, metricName="headway-predicted-wait")
    async with connect(service.address) as channel:
        scaler = externalscaler_pb2_grpc.ExternalScalerStub(channel)
        stub = queue_service_pb2_grpc.QueueServiceStub(channel)
        request = queue_service_pb2.CreateRequest(queue="jobs")
        await stub.Create(request, timeout=SLACK_S, metadata=TEAM["admin"].metadata)
        with refused("UNAUTHENTICATED", grpc.StatusCode.UNAUTHENTICATED):
            await scaler.IsActive(trigger, timeout=SLACK_S)
        with refused("UNAUTHENTICATED", grpc.StatusCode.UNAUTHENTICATED):
            await scaler.StreamIsActive(trigger, timeout=SLACK_S).read()
        with refused("QUEUE_NOT_FOUND", grpc.StatusCode.NOT_FOUND):
            await scaler.IsActive(trigger, timeout=SLACK_S, metadata=OTHERS["watcher"].metadata)
        with refused("QUEUE_NOT_FOUND", grpc.StatusCode.NOT_FOUND):
            await scaler.GetMetrics(asked, timeout=SLACK_S, metadata=OTHERS["watcher"].metadata)
        mine = TEAM["watcher"].metadata
        assert not (await scaler.IsActive(trigger, timeout=SLACK_S, metadata=mine)).result
        (value,) = (await scaler.GetMetrics(asked, timeout=SLACK_S, metadata=mine)).metricValues
        assert value.metricValueFloat == 0
