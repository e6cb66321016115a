"""The server: its ports, how it takes calls, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import grpc
import grpc.aio
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from headwayd.rpc.core.awaited import Awaited
from headwayd.rpc.core.call import Call
from headwayd.rpc.core.completions import Completions, Event, Tag
from headwayd.rpc.core.known import Refused

# So many calls at most are begun in one turn of the event loop. The others wait in gRPC's own line, where they are
# counted.
_AT_A_TIME = 8
# That the caller of a call of one reply has gone is noticed within twice this time.
_SHORT_S = 0.005


class _Details(grpc.HandlerCallDetails):
    """What is asked of those who have handlers."""

    def __init__(self, call: Call) -> None:
        self.method = call.path
        self.invocation_metadata = call.invocation_metadata()


class Server(grpc.aio.Server):
    """Serves as grpc.aio's server does, without interceptors, compression, and handlers that block.

    Life: handlers and ports are added, `start`, `stop`. `completions` may be those of several servers; they are closed
    when all have stopped, and so may `awaited`. All methods belong to the event loop.
    """

    def __init__(
        self, completions: Completions, options: Sequence[tuple[str, Any]] = (), awaited: Awaited | None = None
    ) -> None:
        self._completions = completions
        self.awaited = awaited or Awaited()
        self._server = cygrpc.Server(tuple(options), False)
        self._server.register_completion_queue(completions.queue)
        completions.enter()
        self._generic: list[grpc.GenericRpcHandler] = []
        self._registered: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        self._read_early: set[str | bytes] = set()
        # The calls that run. They are kept here, for the event loop itself keeps no task.
        self._young: set[Call] = set()
        self._old: set[Call] = set()
        self._watched: set[Call] = set()
        self._is_watching = False
        self._is_started = self._is_released = False
        self._ended: asyncio.Future[None] | None = None
        self._shut_down: asyncio.Future[None]

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Before the start."""
        self._generic.extend(generic_rpc_handlers)

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """Before the start. The calls of each of these methods wait in a line of their own."""
        for method, handler in method_handlers.items():
            path = f"/{service_name}/{method}"
            self._server.register_method(path)
            self._registered[path] = handler

    def read_early(self, paths: Iterable[str]) -> None:
        """Of these methods, which take one request and give one reply, the request is read when a call comes, unless
        the event loop is busy. Before the start."""
        for path in paths:
            self._read_early.update((path, path.encode()))

    def add_insecure_port(self, address: str) -> int:
        """The port. Before the start. Raises RuntimeError."""
        return self._bound(address, None)

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int:
        """The same with TLS."""
        inner: Any = server_credentials  # nothing else can be done with them, by gRPC's own servers either
        return self._bound(address, inner._credentials)  # noqa: SLF001

    def _bound(self, address: str, credentials: Any) -> int:
        port: int = self._server.add_http2_port(address.encode(), credentials)
        if not port:
            raise RuntimeError(f"cannot listen on {address}")
        return port

    async def start(self) -> None:
        """Takes calls from now on. Once."""
        self._is_started = True
        self._server.start()
        for _ in range(_AT_A_TIME):
            self._ask(None)
        for path in self._registered:
            self._ask(path)

    def _ask(self, path: str | None) -> None:
        """For the next call: of this method, if it is one that was registered."""
        queue, tag = self._completions.queue, Tag(partial(self._came, path), partial(self._came_early, path))
        with contextlib.suppress(ValueError):  # it is being stopped
            if path is None:
                self._server.request_call(queue, queue, tag)
            else:
                self._server.request_registered_call(queue, queue, path, tag)

    def _came_early(self, path: str | None, event: Event) -> bool:
        """By the thread of completions, while the event loop has nothing of gRPC's to do."""
        has_time = self.awaited.may_begin_early
        if not has_time or not event.success or (path or event.call_details.method) not in self._read_early:
            return False
        Call(self, self._completions, event, path).receive_early()
        self._ask(path)
        return True

    def _came(self, path: str | None, event: Event) -> None:
        # Only then: those that have come begin before others come.
        self._completions.at_next_turn(partial(self._ask, path))
        if event.success:
            Call(self, self._completions, event, path).begin()

    def handler_of(self, call: Call) -> grpc.RpcMethodHandler[Any, Any] | Refused | None:
        """Who serves it; None = nobody. Generic handlers may refuse a call."""
        handler = self._registered.get(call.path)
        if handler is not None:
            return handler
        details = _Details(call)
        for generic in self._generic:
            handler = generic.service(details)
            if handler is not None:
                return handler
        return None

    def entered(self, call: Call) -> None:
        """The handler of this call runs. If it still does after `_SHORT_S` the call is watched. Most do not, and to
        watch a call costs a tenth of it."""
        self._completions.enter()
        self._young.add(call)
        if not self._is_watching:
            self._is_watching = True
            self._completions.loop.call_later(_SHORT_S, self._watch)

    def _watch(self) -> None:
        for call in self._old:
            call.watch()
        self._watched |= self._old
        self._old, self._young = self._young, set()
        self._is_watching = bool(self._old)
        if self._is_watching:
            self._completions.loop.call_later(_SHORT_S, self._watch)

    def left(self, call: Call) -> None:
        """It has ended."""
        self._young.discard(call)
        self._old.discard(call)
        self._watched.discard(call)
        self._completions.leave()

    async def stop(self, grace: float | None) -> None:
        """Takes no more calls, and cancels those that still run after `grace` s, at once if None. Waits until gRPC has
        ended all, not for what handlers do then. May be called again, with a shorter grace too."""
        if not self._is_started:
            self._release()
            return
        if self._ended is None:
            loop = asyncio.get_running_loop()
            self._ended = loop.create_future()
            # Calls that nobody has accepted yet gRPC ends in there: of ten thousand that takes it a fifth of a second.
            tag = Tag(self._has_ended)
            self._shut_down = loop.run_in_executor(None, self._server.shutdown, self._completions.queue, tag)
        await asyncio.shield(self._shut_down)
        try:
            async with asyncio.timeout(0 if grace is None else grace):
                await asyncio.shield(self._ended)
        except TimeoutError:
            if not self._ended.done():
                self._server.cancel_all_calls()
            await asyncio.shield(self._ended)

    def _has_ended(self, _event: Event) -> None:
        self._shut_down.add_done_callback(self._destroy)  # it may not have returned yet, and uses the server

    def _destroy(self, _shut_down: object) -> None:
        self._server.destroy()
        self._release()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _release(self) -> None:
        if not self._is_released:
            self._is_released = True
            self._completions.leave()

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        """Until it has been stopped; whether that took longer than `timeout` s."""
        if self._ended is None:
            raise grpc.aio.UsageError("it is not being stopped")
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(self._ended)
        except TimeoutError:
            return True
        return False
