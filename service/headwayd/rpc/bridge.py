"""The calls of the gRPC port for whoever takes them another way: the same handlers, guards, limits and errors.

Only bytes go in and come out, as protobuf or as its JSON, so that who uses this needs to know neither. Calls that
stream their requests are not offered: plain HTTP cannot carry both ways at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message as ProtoMessage
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc.aio import ServicerContext

from headwayd.domain.calls import Asked, CallFailed, Method, Why, certificate_shown
from headwayd.domain.errors import FieldInvalid, InvalidInput, TooLarge, Violation
from headwayd.domain.json_text import MOST_MARKS, marks_of, too_many
from headwayd.rpc.decoding import WHOLE_REQUEST
from headwayd.rpc.encoded import Reply, as_message, to_bytes
from headwayd.rpc.guard import CERTIFICATE
from headwayd.rpc.status import rich_status

_STATUS_KEY = "grpc-status-details-bin"


class Bridge:
    """All calls of `services` with one request, by their paths."""

    def __init__(
        self, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]], services: Sequence[ServiceDescriptor]
    ) -> None:
        self._handlers = handlers
        known = {f"/{service.full_name}/{method.name}": method for service in services for method in service.methods}
        self._methods = {path: each for path, each in known.items() if path in handlers and not each.client_streaming}

    @property
    def methods(self) -> Sequence[Method]:
        """What can be called."""
        return [
            Method(
                path=path,
                service=path.split("/")[1],
                name=method.name,
                is_stream=method.server_streaming,
            )
            for path, method in self._methods.items()
        ]

    async def call(self, path: str, request: bytes, asked: Asked, *, is_json: bool = False) -> bytes:
        """The reply of a call of one reply. Raises CallFailed. Cancelled, it cancels the call, and ends when that has
        cleaned up."""
        method = self._methods[path]
        handler = self._handlers[path]
        context = _Context(asked)
        assert handler.unary_unary is not None
        run: Any = handler.unary_unary  # a coroutine function, as below: see `edge`
        try:
            reply = await run(self._decoded(method, request, is_json=is_json), context)
        except grpc.aio.AbortError:
            raise context.failure() from None
        return _encoded(reply, is_json=is_json)

    async def stream(
        self, path: str, request: bytes, asked: Asked, *, is_json: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """The replies of a call that streams them, one by one as they are asked for. Raises CallFailed. Closed, it
        cancels the call, and ends when that has cleaned up."""
        method = self._methods[path]
        handler = self._handlers[path]
        context = _Context(asked)
        assert handler.unary_stream is not None
        decoded = self._decoded(method, request, is_json=is_json)
        run: Any = handler.unary_stream
        task = asyncio.ensure_future(run(decoded, context))
        task.add_done_callback(lambda _: context.end())
        try:
            while (reply := await context.reply()) is not None:
                yield _encoded(reply, is_json=is_json)
            task.result()
        except grpc.aio.AbortError:
            raise context.failure() from None
        finally:
            await _ended(task)

    def _decoded(self, method: MethodDescriptor, request: bytes, *, is_json: bool) -> Any:
        decode = self._handlers[f"/{method.containing_service.full_name}/{method.name}"].request_deserializer
        assert decode is not None
        return decode(_from_json(method, request) if is_json else request)


def _from_json(method: MethodDescriptor, text: bytes) -> bytes:
    if (marks := marks_of(text)) > MOST_MARKS:
        raise _refused(TooLarge, too_many(marks), limit=str(MOST_MARKS), size=str(marks))
    message: ProtoMessage = message_factory.GetMessageClass(method.input_type)()
    try:
        json_format.Parse(text or b"{}", message)
    except (json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        raise _refused(FieldInvalid, f"is no JSON of {method.input_type.full_name}: {str(error)[:200]}") from None
    return message.SerializeToString()


def _refused(error_class: type[InvalidInput], description: str, **metadata: str) -> CallFailed:
    refusal = error_class(
        f"{WHOLE_REQUEST} {description}",
        metadata={"field": WHOLE_REQUEST, **metadata},
        violations=[Violation(WHOLE_REQUEST, description)],
    )
    return _failure(rich_status(refusal))


def _encoded(reply: Reply, *, is_json: bool) -> bytes:
    if is_json:
        return json_format.MessageToJson(as_message(reply), indent=None, ensure_ascii=False).encode()
    return to_bytes(reply)


def _failure(status: status_pb2.Status) -> CallFailed:
    details = [(detail.type_url, detail.value) for detail in status.details]
    return CallFailed(status.code, status.message, details, why=_why(status))


def _why(status: status_pb2.Status) -> Why:
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    after_ms = None
    for detail in status.details:
        detail.Unpack(info)
        if detail.Unpack(retry):
            after_ms = retry.retry_delay.ToMilliseconds()
    return Why(info.reason, dict(info.metadata), after_ms)


async def _ended(task: asyncio.Future[None]) -> None:
    """Cancels it and waits for its clean-up, whatever happens meanwhile to who waits."""
    task.cancel()
    is_cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            is_cancelled = True
    if is_cancelled:
        raise asyncio.CancelledError


class _Context(ServicerContext[Any, Any]):
    """What a handler is told of a call, and how it answers. It lives as long as one call."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._certificate = certificate_shown()
        self._until = None if asked.within_s is None else time.monotonic() + asked.within_s
        self._status = status_pb2.Status(code=code_pb2.INTERNAL, message="it ended without a status")
        self._is_aborted = False
        self._reply: Any = None
        self._is_over = False
        self._written, self._taken = asyncio.Event(), asyncio.Event()

    def failure(self) -> CallFailed:
        """How it was aborted."""
        return _failure(self._status)

    def end(self) -> None:
        """No more replies will be written."""
        self._is_over = True
        self._written.set()

    async def reply(self) -> Any:
        """The next reply; None after the last one."""
        self._taken.set()
        while self._reply is None and not self._is_over:
            self._written.clear()
            await self._written.wait()
        reply, self._reply = self._reply, None
        return reply

    async def write(self, message: Any) -> None:
        """Blocks until the one before was taken: a slow reader delays nobody but itself."""
        await self._taken.wait()
        self._taken.clear()
        self._reply = message
        self._written.set()

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        self._is_aborted = True
        self._status = status_pb2.Status(code=code.value[0], message=details)
        for key, value in trailing_metadata or ():
            if key == _STATUS_KEY:
                self._status = status_pb2.Status.FromString(value)
        raise grpc.aio.AbortError

    def time_remaining(self) -> float | None:  # type: ignore[override]
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    def invocation_metadata(self) -> Any:
        return tuple(self._asked.metadata)

    def peer(self) -> str:
        return self._asked.peer

    def peer_identities(self) -> None:
        return None

    def peer_identity_key(self) -> None:
        return None

    def auth_context(self) -> Mapping[str, Any]:
        return {CERTIFICATE: [self._certificate]} if self._certificate else {}

    async def read(self) -> NoReturn:
        raise NotImplementedError  # no call with a stream of requests comes here

    async def send_initial_metadata(self, initial_metadata: Any) -> None: ...

    def set_trailing_metadata(self, trailing_metadata: Any) -> None: ...

    def set_compression(self, compression: Any) -> None: ...

    def code(self) -> int:  # type: ignore[override]  # as grpc.aio itself has it
        return self._status.code if self._is_aborted else 0

    def set_code(self, code: Any) -> None: ...

    def set_details(self, details: str) -> None: ...

    def disable_next_message_compression(self) -> None: ...

    async def abort_with_status(self, status: Any) -> NoReturn:
        await self.abort(status.code, status.details, status.trailing_metadata)
