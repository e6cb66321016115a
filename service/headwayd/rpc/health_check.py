"""Asks a running service whether it serves. The client's side of `grpc.health.v1`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

# A health check is for the process that is named, never for a proxy that the environment names.
_CHANNEL_OPTIONS = (("grpc.enable_http_proxy", 0),)


async def check(address: str, timeout: timedelta) -> bool:
    """Whether the service at `address` ("HOST:PORT" or "unix:PATH") says SERVING within `timeout`."""
    async with grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            response = await stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout.total_seconds())
        except grpc.aio.AioRpcError:
            return False
    return bool(response.status == health_pb2.HealthCheckResponse.SERVING)
