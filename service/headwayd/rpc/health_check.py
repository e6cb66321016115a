"""Asks a running service whether it serves. The client's side of `grpc.health.v1`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headwayd.access.tls import TlsFiles

# A health check is for the process that is named, never for a proxy that the environment names.
_CHANNEL_OPTIONS = (("grpc.enable_http_proxy", 0),)


def _channel(address: str, tls: TlsFiles | None) -> grpc.aio.Channel:
    if tls is None or address.startswith("unix:"):
        return grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
    pems = tls.pems
    own = (pems.key, pems.cert) if pems.client_ca is not None else (None, None)
    options = (*_CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", tls.name))
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(pems.cert, *own), options=options)


async def check(address: str, timeout: timedelta, tls: TlsFiles | None = None, *, service: str = "") -> bool:
    """Whether the service at `address` ("HOST:PORT" or "unix:PATH") says SERVING within `timeout`, of itself or of the
    `service` that it is asked about, such as "readiness". With the `tls` that it serves, what answers must have that
    very certificate, for whatever name; and it is shown the same one."""
    async with _channel(address, tls) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            response = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout.total_seconds())
        except grpc.aio.AioRpcError:
            return False
    return bool(response.status == health_pb2.HealthCheckResponse.SERVING)
