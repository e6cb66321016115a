"""`grpc.health.v1.Health`: whether this process wants calls, lives, and has a store that can be counted on.

Not the servicer of grpcio-health-checking 1.81: there the first of several watchers that leaves takes the others'
signal with it, setting a status needs a coroutine, and watchers hold up the server's stop for the whole grace.
"""
# ruff: noqa: N802 - the methods are named by the protocol

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
from grpc.aio import ServicerContext
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headwayd.rpc.beside import Beside

Context = ServicerContext[Any, Any]
_Status = health_pb2.HealthCheckResponse
SERVICE_NAME = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
# Names for probes, beside the services' own. A process lives as long as it answers; no store and no shut-down changes
# that, or it would be killed for what killing does not mend.
LIVENESS = "liveness"
# Wants calls, and the store answers.
READINESS = "readiness"


class HealthServicer(health_pb2_grpc.HealthServicer):
    """One status for all `services`; the empty name, the server as a whole, is one of them always. LIVENESS and
    READINESS have their own. Check is always answered; of Watch there are as many at a time as `beside` admits."""

    def __init__(self, services: Iterable[str], beside: Beside) -> None:
        self._beside = beside
        self._services = frozenset({"", LIVENESS, READINESS, *services})
        self._is_serving = False
        self._is_ready = False
        self._is_ended = False
        self._changed = asyncio.Event()

    def set_serving(self, is_serving: bool) -> None:
        """SERVING or NOT_SERVING, from now on."""
        self._is_serving = is_serving
        self._wake()

    def set_ready(self, is_ready: bool) -> None:
        """What READINESS tells while serving, from now on."""
        self._is_ready = is_ready
        self._wake()

    def end(self) -> None:
        """NOT_SERVING, and the end of every Watch."""
        self._is_serving = False
        self._is_ended = True
        self._wake()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> _Status:
        """The status now; NOT_FOUND for a service that is not here."""
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return _Status(status=self._status_of(request.service))

    # A coroutine function, which grpc.aio does not drop where it stands when the call is cancelled.
    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        """The status now and whenever it changes, until the server ends."""
        await self._beside.admit(context)
        with self._beside.entered(context):
            told: int | None = None
            while True:
                changed = self._changed
                status = self._status_of(request.service)
                if status != told:
                    told = status
                    await context.write(_Status(status=status))
                if self._is_ended:
                    return
                await changed.wait()

    def _status_of(self, service: str) -> Any:
        if service not in self._services:
            return _Status.SERVICE_UNKNOWN
        if service == LIVENESS:
            is_serving = not self._is_ended
        else:
            is_serving = self._is_serving and (self._is_ready or service != READINESS)
        return _Status.SERVING if is_serving else _Status.NOT_SERVING

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def health_handlers(servicer: HealthServicer) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    """The handlers by their paths, for a router that knows all of the server's calls."""
    return {
        f"/{SERVICE_NAME}/Check": grpc.unary_unary_rpc_method_handler(
            servicer.Check,
            request_deserializer=health_pb2.HealthCheckRequest.FromString,
            response_serializer=_Status.SerializeToString,
        ),
        f"/{SERVICE_NAME}/Watch": grpc.unary_stream_rpc_method_handler(
            servicer.Watch,
            request_deserializer=health_pb2.HealthCheckRequest.FromString,
            response_serializer=_Status.SerializeToString,
        ),
    }
