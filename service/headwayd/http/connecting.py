"""Connect, gRPC-Web and JSON: what a browser, or anything that speaks HTTP, calls the service by.

`POST /headway.v1.QueueService/Put` with `content-type: application/json`, or `application/proto`; streams as Connect
and gRPC-Web frame them. The protocols are connectrpc's; what is called, and everything that is refused, is the gRPC
port's own. A caller that hangs up, or whose time is up, has cancelled its call.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from connectrpc.code import Code
from connectrpc.codec import Codec
from connectrpc.compression.gzip import GzipCompression
from connectrpc.errors import ConnectError, ErrorDetail
from connectrpc.method import IdempotencyLevel, MethodInfo, StreamType
from connectrpc.request import RequestContext
from connectrpc.server import ConnectASGIApplication, Endpoint
from protobuf.wkt import Any as AnyMessage
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headwayd.domain.calls import Asked, CallFailed, Method


class Calls(Protocol):
    """The calls that can be made. Both raise CallFailed."""

    @property
    def methods(self) -> Sequence[Method]: ...

    async def call(self, path: str, request: bytes, asked: Asked, *, is_json: bool = False) -> bytes: ...

    def stream(
        self, path: str, request: bytes, asked: Asked, *, is_json: bool = False
    ) -> AsyncGenerator[bytes, None]: ...


@dataclass(frozen=True, slots=True)
class Request:
    """As it came."""

    data: bytes
    is_json: bool


class _AsItIs(Codec[bytes, Request]):
    """Hands bytes through: who answers knows what they mean."""

    def __init__(self, name: str) -> None:
        self._name = name

    def name(self) -> str:
        return self._name

    def encode(self, message: bytes) -> bytes:
        return message

    def decode(self, data: bytes | bytearray, message_class: type[Request]) -> Request:
        return message_class(bytes(data), is_json=self._name == "json")


class _Gzip(GzipCompression):
    """Takes one member, as everybody sends it. connectrpc (as of 0.13) goes on behind it, and copies all that is left
    for each: a megabyte of empty members held up the process for a second, and nothing bounds what they unpack to."""

    def decompress(self, data: bytes | bytearray | memoryview, read_max_bytes: int | None = None) -> bytes:
        """What is unpacked. Raises ValueError or zlib.error for what is no whole member, and ConnectError
        (RESOURCE_EXHAUSTED) for more than `read_max_bytes`."""
        most_bytes = read_max_bytes or 0
        member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # the format of gzip
        unpacked = member.decompress(data, most_bytes + 1)
        if len(unpacked) > most_bytes:
            raise ConnectError(Code.RESOURCE_EXHAUSTED, f"the request unpacks to more than {most_bytes} bytes")
        if not member.eof or member.unused_data:
            raise ValueError("is not one whole member of gzip")
        return unpacked


_TAKEN = (
    "application/json, application/proto, application/connect+json, application/connect+proto, application/grpc-web"
)

# What asks for compressed answers. They go out as they are: to pack one of some megabytes would hold up everybody
# else's calls for a second, and every browser asks for it. A proxy in front can do it on a processor of its own.
_ASK_FOR_COMPRESSION = {b"accept-encoding", b"connect-accept-encoding", b"grpc-accept-encoding"}


class ConnectApp(ConnectASGIApplication[Calls]):
    """The ASGI application for one service of the schema."""

    def __init__(self, calls: Calls, service: str, *, most_bytes: int) -> None:
        self._path = f"/{service}"
        super().__init__(
            service=calls,
            endpoints=lambda calls: _endpoints(calls, service),
            read_max_bytes=most_bytes,
            codecs=[_AsItIs("proto"), _AsItIs("json")],
            compressions=[_Gzip()],
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; connectrpc is not shown of its head what it could not stand (as of 0.13: text that is no UTF-8,
        and gRPC itself, whose trailers need HTTP/2)."""
        headers = [pair for pair in scope["headers"] if pair[0] not in _ASK_FOR_COMPRESSION and _is_text(pair[1])]
        kind = dict(headers).get(b"content-type", b"").lower()
        if kind.startswith(b"application/grpc") and not kind.startswith(b"application/grpc-web"):
            await Response(status_code=415, headers={"accept-post": _TAKEN})(scope, receive, send)
            return
        await super().__call__({**scope, "headers": headers}, receive, send)

    @property
    def path(self) -> str:
        return self._path


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _endpoints(calls: Calls, service: str) -> Mapping[str, Any]:
    return {method.path: _endpoint(calls, method) for method in calls.methods if method.service == service}


def _endpoint(calls: Calls, method: Method) -> Any:
    info: MethodInfo[Request, bytes] = MethodInfo(
        name=method.name,
        service_name=method.service,
        input=Request,
        output=bytes,
        idempotency_level=IdempotencyLevel.UNKNOWN,
        stream_type=StreamType.SERVER_STREAM if method.is_stream else StreamType.UNARY,
    )

    async def call(request: Request, context: RequestContext[Request, bytes]) -> bytes:
        try:
            return await calls.call(method.path, request.data, _asked(context), is_json=request.is_json)
        except CallFailed as error:
            raise _connect_error(error) from None

    async def stream(request: Request, context: RequestContext[Request, bytes]) -> AsyncIterator[bytes]:
        replies = calls.stream(method.path, request.data, _asked(context), is_json=request.is_json)
        try:
            async for reply in replies:
                yield reply
        except CallFailed as error:
            raise _connect_error(error) from None
        finally:
            await replies.aclose()

    return Endpoint.server_stream(info, stream) if method.is_stream else Endpoint.unary(info, call)


def _asked(context: RequestContext[Request, bytes]) -> Asked:
    within_ms = context.timeout_ms
    return Asked(
        metadata=list(context.request_headers.allitems()),
        peer=context.client_address or "",
        within_s=None if within_ms is None else within_ms / 1000,
    )


def _connect_error(error: CallFailed) -> ConnectError:
    details = [ErrorDetail(AnyMessage(type_url=type_url, value=value)) for type_url, value in error.details]
    return ConnectError(Code[error.code.name], error.text, details)
