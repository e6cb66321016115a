"""A service that traces shares queues as any other: what is only a payload stays that."""

from __future__ import annotations

from collections.abc import Callable

import grpc.aio

from harness import ServiceProcess, StoreServer
from harness.otlp import OtlpReceiver
from headway.v1.queue_service_pb2_grpc import QueueServiceStub
from interop.foreign import Foreign
from wire.calls import Line, payloads


async def test_payloads_pass_a_service_that_records_every_job_byte_for_byte(  # noqa: PLR0917 - fixtures
    make_service: Callable[..., ServiceProcess],
    connect: Callable[[str], grpc.aio.Channel],
    store_server: StoreServer,
    line: Line,
    foreign: Foreign,
    prefix: str,
) -> None:
    async with OtlpReceiver() as receiver:
        service = make_service(
            HEADWAY_REDIS_URL=store_server.url,
            PRESSURE_PREFIX=prefix,
            HEADWAY_OTLP_ENDPOINT=receiver.endpoint,
            HEADWAY_TRACE_RATIO="1",
            OTEL_BSP_SCHEDULE_DELAY="20",
        )
        async with connect(service.address) as channel:
            traced = Line(QueueServiceStub(channel), line.name)
            await traced.create()
            await traced.put(b"ours")
            assert await foreign.call("get") == b"ours"
            await foreign.call("put", b"theirs")
            deliveries = await traced.take(1)
            assert payloads(deliveries) == [b"theirs"]
            await traced.ack(deliveries[0].lease)
            await receiver.until("Ack")
        service.stop()
