"""The plain way to take calls: gRPC's own generated registration, method by method.

What is behind it is the same: the guards of `edge`, the servicers, the engine. So whatever both ways answer must be
alike, which a test compares byte by byte. What the generated code reads by itself it also refuses by itself: a request
that cannot be read, or a method that nobody knows, has gRPC's own status then, without details. How large a request is
is found out when it has been read, so that the limits of bytes hold. Calls whose requests do not come are hidden by
grpc.aio: they have no bound but that of connections and their streams, no time, and hold up going down for the grace.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc

from headway.v1 import admin_service_pb2_grpc, queue_service_pb2_grpc
from headwayd.rpc.decoding import weighed
from headwayd.rpc.edge import ANSWERING_METHODS, Context
from headwayd.rpc.keda import externalscaler_pb2_grpc

_ADD: Mapping[str, tuple[Callable[..., None], type]] = {
    "headway.v1.QueueService": (
        queue_service_pb2_grpc.add_QueueServiceServicer_to_server,
        queue_service_pb2_grpc.QueueServiceServicer,
    ),
    "headway.v1.AdminService": (
        admin_service_pb2_grpc.add_AdminServiceServicer_to_server,
        admin_service_pb2_grpc.AdminServiceServicer,
    ),
    "externalscaler.ExternalScaler": (
        externalscaler_pb2_grpc.add_ExternalScalerServicer_to_server,
        externalscaler_pb2_grpc.ExternalScalerServicer,
    ),
    "grpc.health.v1.Health": (health_pb2_grpc.add_HealthServicer_to_server, health_pb2_grpc.HealthServicer),
    "grpc.reflection.v1alpha.ServerReflection": (
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server,
        reflection_pb2_grpc.ServerReflectionServicer,
    ),
}


# Behind these there is no `edge`.
_UNGUARDED = frozenset({"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"})
_Weigh = Callable[[Any], Any]


def register_plainly(
    server: grpc.aio.Server, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]], *, max_request_bytes: int
) -> None:
    """Registers all handlers, given by their paths, as generated code does."""
    for service, (add, base) in _ADD.items():
        methods = {path.rpartition("/")[2]: handler for path, handler in handlers.items() if f"/{service}/" in path}
        if not methods:  # not served by this process
            continue
        behaviours = {name: _behaviour(handler) for name, handler in methods.items()}
        if service not in _UNGUARDED:
            for name, handler in methods.items():
                weigh = partial(weighed, max_bytes=max_request_bytes, counted=name in ANSWERING_METHODS)
                behaviours[name] = _weighing(behaviours[name], weigh, takes_stream=bool(handler.request_streaming))
        servicer = SimpleNamespace(
            **{name: getattr(base(), name) for name in vars(base) if not name.startswith("_")} | behaviours
        )
        add(servicer, server)


def _behaviour(handler: grpc.RpcMethodHandler[Any, Any]) -> Callable[..., Any]:
    found = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    assert found is not None
    return found


def _weighing(behaviour: Callable[..., Awaitable[Any]], weigh: _Weigh, *, takes_stream: bool) -> Callable[..., Any]:
    """The same behaviour, which is told how large each request is."""

    async def handle(request: Any, context: Context) -> Any:
        return await behaviour(_Weighed(request, weigh) if takes_stream else weigh(request), context)

    return handle


class _Weighed(AsyncIterator[Any]):
    """The requests of a stream. An iterator and no generator: it has nothing to clean up."""

    def __init__(self, requests: AsyncIterator[Any], weigh: _Weigh) -> None:
        self._requests = aiter(requests)
        self._weigh = weigh

    async def __anext__(self) -> Any:
        return self._weigh(await anext(self._requests))
