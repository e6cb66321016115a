"""gRPC reflection: the schema, for tools that ask for it. Only on demand, and only for those who may call."""

from __future__ import annotations

from typing import Any

import grpc
from grpc_reflection.v1alpha import _async as reflection
from grpc_reflection.v1alpha import reflection_pb2

from headwayd.rpc.guard import Guard, guarded

_SERVICE = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]


def reflection_handlers(services: list[str], guard: Guard | None) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    """The handlers by their paths, for a router that knows all of the server's calls."""
    servicer = reflection.ReflectionServicer([*services, _SERVICE.full_name])
    behaviour = servicer.ServerReflectionInfo
    return {
        f"/{_SERVICE.full_name}/ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(
            behaviour if guard is None else guarded(behaviour, guard),
            request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
    }
