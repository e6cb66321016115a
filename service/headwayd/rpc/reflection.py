"""gRPC reflection: the schema, for tools that ask for it. Only on demand, and only for those who may call."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import grpc
from grpc_reflection.v1alpha import _async as reflection
from grpc_reflection.v1alpha import reflection_pb2

from headwayd.domain.errors import ShuttingDown
from headwayd.rpc.beside import Beside, Context
from headwayd.rpc.guard import Guard, guarded
from headwayd.rpc.status import abort
from headwayd.rpc.streams import Requests

_SERVICE = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]


def reflection_handlers(
    services: list[str], guard: Guard | None, beside: Beside
) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    """The handlers by their paths, for a router that knows all of the server's calls. As many streams at a time as
    `beside` admits, until that drains."""
    servicer = reflection.ReflectionServicer([*services, _SERVICE.full_name])

    async def behaviour(requests: Any, context: Context) -> None:
        await beside.admit(context)
        asked = Requests(requests)
        with beside.entered(context), beside.ending(asked):
            try:
                async with aclosing(servicer.ServerReflectionInfo(asked, context)) as replies:
                    async for reply in replies:
                        await context.write(reply)
            except ShuttingDown as error:
                await abort(context, error)

    return {
        f"/{_SERVICE.full_name}/ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(
            behaviour if guard is None else guarded(behaviour, guard),
            request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
    }
