"""What every call passes on its way in and out: admission, the count of running handlers, errors made statuses.

Handlers are registered from the schema's own descriptors, so that no call can go round this. A call that the schema has
and the servicer does not implement is answered UNIMPLEMENTED with full details.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from grpc.aio import ServicerContext

from headwayd.domain.errors import NotServed, Overloaded, ShuttingDown
from headwayd.rpc.backlog import Backlog
from headwayd.rpc.decoding import Undecodable, decoder
from headwayd.rpc.incidents import fail
from headwayd.rpc.status import Refusal, abort
from headwayd.rpc.streams import Requests, Stream

Context = ServicerContext[Any, Any]
Handlers = Mapping[str, "grpc.RpcMethodHandler[Any, Any]"]

OWN_PACKAGE = "/headway.v1."
_FIRST_REQUEST_S = 1.0
# These end work that was begun: they are taken as long as the process lives.
SETTLING_METHODS = frozenset({"Ack", "Delay", "Extend"})


class Gate:
    """Counts the handlers that run. While draining, or above `max_running`, it lets only settling calls in. Draining
    ends the streams, which leave a tenth to other calls: those who watch must not keep out those who work. Calls of one
    reply are also refused as `backlog` says, once there is one."""

    backlog: Backlog | None = None

    def __init__(self, *, max_running: int) -> None:
        self._max_running = max_running
        self._max_streams = max_running - max_running // 10
        self._is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._streams: set[Stream] = set()
        self.running_count = 0

    def start_draining(self) -> None:
        """From now on new work is refused, and streams end, with SHUTTING_DOWN. Idempotent."""
        if self._is_draining:
            return
        self._is_draining = True
        for stream in tuple(self._streams):
            stream.end()

    @contextlib.contextmanager
    def ending(self, stream: Stream) -> Iterator[None]:
        """Within this block the stream, which was admitted just now, ends when draining begins."""
        self._streams.add(stream)
        try:
            yield
        finally:
            self._streams.discard(stream)

    def enter(self) -> None:
        """A handler begins to run."""
        if self.running_count == 0:
            self._idle.clear()
        self.running_count += 1

    def leave(self) -> None:
        """A handler has ended, its clean-up included."""
        self.running_count -= 1
        if self.running_count == 0:
            self._idle.set()

    def admit(self, *, is_settling: bool, is_stream: bool = False) -> None:
        """Raises ShuttingDown or Overloaded if the call, which has entered, must not go on."""
        if is_settling:
            return
        if self._is_draining:
            raise ShuttingDown("this service process is going down")
        if is_stream and len(self._streams) >= self._max_streams:
            raise Overloaded("the service has more streams open than it can take")
        if self.running_count > self._max_running:
            raise Overloaded("the service has more calls running than it can take")

    async def wait_until_idle(self, timeout_s: float) -> bool:
        """Waits until no handler runs; False if that took too long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


class CallRouter(grpc.GenericRpcHandler):
    """Finds the handler of a call. Of our package every call has one, also those that only a newer schema knows."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler for one call, or None if the service knows nothing of it."""
        path = handler_call_details.method
        handler = self._handlers.get(path)
        if handler is None and path.startswith(OWN_PACKAGE):
            return _unserved(path)
        return handler


def service_handlers(servicer: object, service: ServiceDescriptor, *, gate: Gate, max_request_bytes: int) -> Handlers:
    """The guarded handlers of all calls of `service` that `servicer` implements itself, by their paths.

    A call of one reply is a coroutine function of request and context. One that streams its replies is an async
    generator function; it gets an iterator of requests instead of the request if these are a stream, too.
    """
    served = vars(type(servicer))
    return {
        f"/{service.full_name}/{method.name}": _handler(getattr(servicer, method.name), method, gate, max_request_bytes)
        for method in service.methods
        if method.name in served
    }


def _handler(
    behaviour: Callable[[Any, Context], Any], method: MethodDescriptor, gate: Gate, max_request_bytes: int
) -> grpc.RpcMethodHandler[Any, Any]:
    decode = decoder(message_factory.GetMessageClass(method.input_type), max_bytes=max_request_bytes)
    encode = message_factory.GetMessageClass(method.output_type).SerializeToString
    match method.client_streaming, method.server_streaming:
        case False, False:
            unary = _unary(behaviour, method.name, gate)
            return grpc.unary_unary_rpc_method_handler(unary, request_deserializer=decode, response_serializer=encode)
        case False, True:
            stream = _stream(behaviour, method.name, gate)
            return grpc.unary_stream_rpc_method_handler(stream, request_deserializer=decode, response_serializer=encode)
        case True, True:
            stream = _stream(behaviour, method.name, gate, takes_stream=True)
            return grpc.stream_stream_rpc_method_handler(
                stream, request_deserializer=decode, response_serializer=encode
            )
        case _:
            raise TypeError(f"{method.full_name}: the schema has no call of this shape")


def _unary(
    behaviour: Callable[[Any, Context], Awaitable[Any]], name: str, gate: Gate
) -> Callable[[Any, Context], Awaitable[Any]]:
    is_settling = name in SETTLING_METHODS
    # Made once: to refuse must cost little, or refusing is all that is done.
    overloaded = Refusal(Overloaded("more calls come than the service can do"))

    async def handle(request: Any, context: Context) -> Any:
        gate.enter()
        backlog = gate.backlog
        began = backlog.enter() if backlog else 0
        try:
            if backlog and backlog.must_refuse and not is_settling:
                await overloaded.end(context)
            if type(request) is Undecodable:
                raise request.error
            gate.admit(is_settling=is_settling)
            return await behaviour(request, context)
        except grpc.aio.AbortError:  # refused above
            raise
        except Exception as error:  # noqa: BLE001 - the one guard of calls: a defect must not show its inside
            await fail(context, error, name)
        finally:
            if backlog:
                backlog.leave(began)
            gate.leave()

    return handle


def _stream(
    behaviour: Callable[[Any, Context], AsyncGenerator[Any, None]], name: str, gate: Gate, *, takes_stream: bool = False
) -> Callable[[Any, Context], Awaitable[None]]:
    # A coroutine function, which grpc.aio leaves to write by itself.
    async def handle(request: Any, context: Context) -> None:
        gate.enter()
        try:
            if type(request) is Undecodable:
                raise request.error
            gate.admit(is_settling=False, is_stream=True)
            requests = Requests(request) if takes_stream else None
            stream = Stream(behaviour(requests or request, context), context, name, requests=requests)
            with gate.ending(stream):
                await stream.run()
        except Exception as error:  # noqa: BLE001 - the one guard of streams, as above
            await fail(context, error, name)
        finally:
            gate.leave()

    return handle


def _unserved(path: str) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler for a call of any shape: on the wire they are all streams."""
    method = path.rpartition("/")[2]

    async def refuse(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        # A client that is still sending when its call ends may see an error of its own library instead of ours.
        with contextlib.suppress(TimeoutError, StopAsyncIteration):
            async with asyncio.timeout(_FIRST_REQUEST_S):
                await anext(aiter(requests))
        await abort(context, NotServed(f"the call {method} is not served by this version", metadata={"method": method}))
        yield b""  # never reached: makes this the generator that a stream's handler must be

    return grpc.stream_stream_rpc_method_handler(refuse)
