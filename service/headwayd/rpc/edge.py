"""What every call passes on its way in and out: admission, the count of running handlers, errors made statuses.

Handlers are registered from the schema's own descriptors, so that no call can go round this. A call that the schema has
and the servicer does not implement is answered UNIMPLEMENTED with full details.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from grpc.aio import ServicerContext

from headwayd.domain.errors import HeadwayError, NotServed, Overloaded, ShuttingDown
from headwayd.domain.limits import Limits
from headwayd.rpc.backlog import BUSY, Backlog
from headwayd.rpc.beside import Beside
from headwayd.rpc.core.known import Refused
from headwayd.rpc.decoding import Undecodable, decoder
from headwayd.rpc.encoded import to_bytes
from headwayd.rpc.guard import Caller, Guard
from headwayd.rpc.incidents import fail
from headwayd.rpc.refusing import Refusing
from headwayd.rpc.room import Large, Room
from headwayd.rpc.status import Refusal, abort
from headwayd.rpc.streams import Requests, Stream
from headwayd.rpc.watch_requests import kept_bytes, stream_count

Context = ServicerContext[Any, Any]
Handlers = Mapping[str, "grpc.RpcMethodHandler[Any, Any]"]
Behaviour = Callable[[Any, Context], Any]
Wrap = Callable[[str, Behaviour], Behaviour]  # of a method's name and what it does

OWN_PACKAGE = "/headway.v1."
_FIRST_REQUEST_S = 1.0
# These end work that was begun: they are taken as long as the process lives.
SETTLING_METHODS = frozenset({"Ack", "Delay", "Extend"})
# These may wait for as long as they are told to.
WAITING_METHODS = frozenset({"Get", "Put"})
# Streams that answer each request with one reply, in order.
ANSWERING_METHODS = frozenset({"Produce"})
_WATCHING_METHOD = "WatchPosition"


class Gate:
    """Counts the handlers that run. While draining, or above the limits, it lets only settling calls in. Draining ends
    the streams. Calls of one reply are also refused as `backlog` says, once there is one, and large ones without
    `room`. What runs `beside` takes room from them."""

    backlog: Backlog | None = None

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._streams: set[Stream] = set()
        self._streams_of: Counter[str] = Counter()  # connections, by the address of the other side
        self._more_count = 0  # what streams count for beyond one
        self.room = Room(limits.max_running_bytes)
        self.beside = Beside(limits, lambda: self.running_count + self._more_count)
        self.refusing = Refusing()
        self.running_count = 0
        self.streams_begun_count = 0

    @property
    def must_refuse_next(self) -> bool:
        """Whether a call of one reply that does not settle need not even be read, as `backlog` says."""
        return self.backlog is not None and self.backlog.must_refuse_next

    def next_refusal(self) -> Refusal:
        """What one more call is told that must not go on because of `backlog`."""
        if self.backlog is not None:
            self.backlog.refused()
        return self.refusing.next()

    @property
    def fresh_count(self) -> int:
        """Calls of one reply that run, and began a moment ago; while few run none is counted."""
        return 0 if self.backlog is None else self.backlog.fresh_count

    @property
    def left_to_run(self) -> int:
        """How many more calls and streams may run; below 0 if more do than may."""
        return self._limits.max_running_calls - self._more_count - self.running_count - self.beside.count

    @property
    def most_of_one(self) -> int:
        """As how many streams one may count: alone it may take all, else it would be told for ever to come again."""
        return min(self._limits.max_streams, self._limits.max_streams_per_connection)

    def start_draining(self) -> None:
        """From now on new work is refused, and streams end, with SHUTTING_DOWN. Idempotent."""
        if self._is_draining:
            return
        self._is_draining = True
        self.beside.start_draining()
        for stream in tuple(self._streams):
            stream.end()

    @contextlib.contextmanager
    def ending(self, stream: Stream, connection: str = "", count: int = 1) -> Iterator[None]:
        """Within this block the stream, which was admitted just now, ends when draining begins, and counts as so many
        of its connection."""
        self._streams.add(stream)
        self.streams_begun_count += 1
        self._more_count += count - 1
        self._streams_of[connection] += count
        try:
            yield
        finally:
            self._streams.discard(stream)
            self._more_count -= count - 1
            self._streams_of[connection] -= count
            if not self._streams_of[connection]:
                del self._streams_of[connection]

    async def end_unread(self, timeout_s: float) -> None:
        """Ends streams whose reader leaves a reply untaken for `timeout_s`, a quarter of it later at most. Runs until
        cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(timeout_s / 4)
            since = clock() - timeout_s
            for stream in tuple(self._streams):
                stream.end_if_unread(since)

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

    def admit(self, *, is_settling: bool) -> None:
        """Raises ShuttingDown or Overloaded if the call, which has entered, must not go on."""
        if is_settling:
            return
        if self._is_draining:
            raise ShuttingDown("this service process is going down")
        if self.left_to_run < 0:
            raise _over("the service has more calls running than it can take", "max_running_calls")

    def admit_stream(self, connection: str, count: int = 1) -> None:
        """The same for a stream of this connection that counts as so many."""
        self.admit(is_settling=False)
        if self.left_to_run < count - 1:
            raise _over("the service has more calls running than it can take", "max_running_calls")
        if len(self._streams) + self._more_count + count > self._limits.max_streams:
            raise _over("the service has more streams open than it can take", "max_streams")
        # On a unix socket all connections have one address; only this machine can be there.
        is_known = not connection.startswith("unix:")
        if is_known and self._streams_of[connection] + count > self._limits.max_streams_per_connection:
            raise _over("this connection has more streams open than one may", "max_streams_per_connection")

    async def wait_until_idle(self, timeout_s: float) -> bool:
        """Waits until no handler runs; False if that took too long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


def _over(text: str, limit: str) -> Overloaded:
    return Overloaded(text, metadata={"limit": limit})


class CallRouter(grpc.GenericRpcHandler):
    """Finds the handler of a call. Of our package every call has one, also those that only a newer schema knows. While
    `gate` has to refuse calls those are for which `refusals` has something."""

    def __init__(self, handlers: Handlers, *, gate: Gate, refusals: Mapping[str, Callable[[], Refused]]) -> None:
        self._handlers = handlers
        self._gate = gate
        self._refusals = refusals

    def service(  # type: ignore[override]  # it may refuse, which only our own server knows
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | Refused | None:
        """The handler for one call, or None if the service knows nothing of it, or what it is refused with."""
        path = handler_call_details.method
        if self._gate.must_refuse_next and path in self._refusals:
            return self._refusals[path]()
        handler = self._handlers.get(path)
        if handler is None and path.startswith(OWN_PACKAGE):
            return _unserved(path)
        return handler


def behaviours_of(servicer: object, service: ServiceDescriptor, wrap: Wrap | None = None) -> dict[str, Behaviour]:
    """What `servicer` does itself of the calls of `service`, by their paths. `wrap` may put something of the same kind
    around each."""
    served = vars(type(servicer))
    own = {method.name: getattr(servicer, method.name) for method in service.methods if method.name in served}
    return {
        f"/{service.full_name}/{name}": behaviour if wrap is None else wrap(name, behaviour)
        for name, behaviour in own.items()
    }


def service_handlers(
    servicer: object,
    service: ServiceDescriptor,
    *,
    gate: Gate,
    max_request_bytes: int,
    guard: Guard | None = None,
    wrap: Wrap | None = None,
) -> Handlers:
    """The guarded handlers of all calls of `service` that `servicer` implements itself, by their paths. With a `guard`
    nobody is served by `servicer`, but each caller by what the guard has for it. For `wrap` see `behaviours_of`.

    A call of one reply is a coroutine function of request and context. One that streams its replies is an async
    generator function; it gets an iterator of requests instead of the request if these are a stream, too.
    """
    methods = {f"/{service.full_name}/{method.name}": method for method in service.methods}
    return {
        path: _handler(_Way(path, behaviour, gate, guard), methods[path], max_request_bytes)
        for path, behaviour in behaviours_of(servicer, service, wrap).items()
    }


def refusable(handlers: Handlers) -> list[str]:
    """The paths of the calls that a backlog refuses: those of one reply that do not settle."""
    return [
        path
        for path, handler in handlers.items()
        if handler.unary_unary and path.startswith(OWN_PACKAGE) and path.rpartition("/")[2] not in SETTLING_METHODS
    ]


@dataclass(frozen=True, slots=True)
class _Way:
    """A call on its way in."""

    path: str
    behaviour: Behaviour
    gate: Gate
    guard: Guard | None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def _handler(way: _Way, method: MethodDescriptor, max_request_bytes: int) -> grpc.RpcMethodHandler[Any, Any]:
    decode = decoder(
        message_factory.GetMessageClass(method.input_type),
        max_bytes=max_request_bytes,
        counted=method.name in ANSWERING_METHODS,
    )
    match method.client_streaming, method.server_streaming:
        case False, False:
            unary = _unary(way)
            return grpc.unary_unary_rpc_method_handler(unary, request_deserializer=decode, response_serializer=to_bytes)
        case False, True:
            stream = _stream(way)
            return grpc.unary_stream_rpc_method_handler(
                stream, request_deserializer=decode, response_serializer=to_bytes
            )
        case True, True:
            stream = _stream(way, takes_stream=True)
            return grpc.stream_stream_rpc_method_handler(
                stream, request_deserializer=decode, response_serializer=to_bytes
            )
        case _:
            raise TypeError(f"{method.full_name}: the schema has no call of this shape")


def _unary(way: _Way) -> Callable[[Any, Context], Awaitable[Any]]:
    path, behaviour, gate, guard, name = way.path, way.behaviour, way.gate, way.guard, way.name
    is_settling = name in SETTLING_METHODS
    may_wait = name in WAITING_METHODS

    async def handle(request: Any, context: Context) -> Any:
        gate.enter()
        # While so few run nothing is refused, so that not even the clock is asked.
        backlog = gate.backlog if gate.running_count > BUSY else None
        began = backlog.enter() if backlog else 0
        size = 0
        try:
            if backlog and backlog.must_refuse and not is_settling:
                await gate.next_refusal().end(context)
            caller = None if guard is None else await guard.caller(context, is_settling=is_settling)
            serve = behaviour if caller is None else caller.behaviours[path]
            if type(request) is Undecodable:
                raise request.error
            gate.admit(is_settling=is_settling)
            if type(request) is Large:
                if not is_settling:
                    gate.room.take(request.size)
                    size = request.size
                request = request.request
            if may_wait and guard is not None and caller is not None and request.HasField("wait"):
                with guard.watching_wait(context, caller):
                    return await serve(request, context)
            return await serve(request, context)
        except grpc.aio.AbortError:  # refused above
            raise
        except Exception as error:  # noqa: BLE001 - the one guard of calls: a defect must not show its inside
            await fail(context, error, name)
        finally:
            if backlog:
                backlog.leave(began)
            if size:
                gate.room.give(size)
            gate.leave()

    return handle


def _stream(way: _Way, *, takes_stream: bool = False) -> Callable[[Any, Context], Awaitable[None]]:
    gate, guard, name = way.gate, way.guard, way.name

    # A coroutine function, which grpc.aio leaves to write by itself.
    async def handle(request: Any, context: Context) -> None:
        gate.enter()
        requests = None
        size = 0
        try:
            caller = None if guard is None else await _known(guard, context, request if takes_stream else None)
            if type(request) is Undecodable:
                raise request.error
            large = request if type(request) is Large else None
            request = large.request if large else request
            connection, count = context.peer(), 1
            if name == _WATCHING_METHOD:
                count = min(stream_count(request), gate.most_of_one)
            gate.admit_stream(connection, count)
            kept = kept_bytes(large.size, count) if large else 0
            if kept:  # it is there as long as the stream
                gate.room.take(kept)
                size = kept
            if takes_stream:
                requests = Requests(request, room=gate.room if name in ANSWERING_METHODS else None)
            serve = way.behaviour if caller is None else caller.behaviours[way.path]
            with contextlib.ExitStack() as over:
                if caller is not None:
                    over.enter_context(caller.quota.stream())
                if guard is not None and caller is not None and name in ANSWERING_METHODS:
                    over.enter_context(guard.watching_wait(context, caller))  # what waits is told how far it came
                stream = Stream(serve(requests or request, context), context, name, requests=requests)
                over.enter_context(gate.ending(stream, connection, count))
                if guard is not None and caller is not None:
                    over.enter_context(guard.watching(stream, context, caller))
                await stream.run()
        except Exception as error:  # noqa: BLE001 - the one guard of streams, as above
            await fail(context, error, name)
        finally:
            if requests is not None:
                requests.close()
            if size:
                gate.room.give(size)
            gate.leave()

    return handle


async def _known(guard: Guard, context: Context, requests: AsyncIterator[Any] | None) -> Caller:
    try:
        return await guard.caller(context)
    except HeadwayError:
        if requests is not None:
            await _let_send(requests)
        raise


async def _let_send(requests: AsyncIterator[Any]) -> None:
    """A client that is still sending when its call ends may see an error of its own library instead of ours."""
    with contextlib.suppress(TimeoutError, StopAsyncIteration):
        async with asyncio.timeout(_FIRST_REQUEST_S):
            await anext(aiter(requests))


def _unserved(path: str) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler for a call of any shape: on the wire they are all streams."""
    method = path.rpartition("/")[2]

    async def refuse(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        await _let_send(requests)
        await abort(context, NotServed(f"the call {method} is not served by this version", metadata={"method": method}))
        yield b""  # never reached: makes this the generator that a stream's handler must be

    return grpc.stream_stream_rpc_method_handler(refuse)
