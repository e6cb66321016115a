"""One call: how it is served, what its handler may do with it, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import grpc.aio
import structlog
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from headwayd.rpc.core.completions import Completions, Event, Tag
from headwayd.rpc.core.known import Known, Refused

if TYPE_CHECKING:
    from headwayd.rpc.core.server import Server

log: Any = structlog.get_logger(__name__)

_NO_FLAGS = 0
_OK, _UNKNOWN, _UNIMPLEMENTED = cygrpc.StatusCode.ok, cygrpc.StatusCode.unknown, cygrpc.StatusCode.unimplemented
_UNBROKEN = 8  # replies that a stream sends before others have a turn of the event loop
_FINISHED = "the call has ended"


class Call(Known):
    """A call, as its handler sees it. All but `receive_early` belongs to the event loop."""

    __slots__ = (
        "_abort_error",
        "_completions",
        "_done_callbacks",
        "_handler",
        "_has_sent_metadata",
        "_has_sent_status",
        "_is_cancelled",
        "_is_reading",
        "_is_served",
        "_is_watched",
        "_messages",
        "_reader",
        "_sent_at_once",
        "_server",
        "_task",
    )

    def __init__(self, server: Server, completions: Completions, event: Event, path: str | None) -> None:
        super().__init__(event, path)
        self._server = server
        self._completions = completions
        self._handler: Any = None
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = self._is_served = self._is_watched = False
        self._has_sent_metadata = self._has_sent_status = False
        self._abort_error: grpc.aio.AbortError | None = None
        self._sent_at_once = 0
        self._is_reading = False
        self._messages: list[bytes | None] = []  # that have come and were not read: one at most; None = the last has
        self._reader: asyncio.Future[None] | None = None
        self._done_callbacks: list[Callable[[], None]] = []

    # How it begins and ends.

    def receive_early(self) -> None:
        """Reads the one request before the event loop has heard of the call. By the thread of completions."""
        self._server.awaited.began_early(self)
        self._receive(self._request_came)

    def begin(self) -> None:
        """Has its handler serve it."""
        if not self._find_handler():
            return
        if self._handler.request_streaming:
            self._run(self._serve_requests())
            self.watch()
        else:
            self._receive(self._request_came)
            self._server.awaited.began(self)

    def end_unread(self, told: Refused | None) -> None:
        """Ends it with this, or cancels it, though its request has not come: nothing of it was begun."""
        if told is None:
            self._call.cancel()
        elif not self._has_sent_status:
            self._send_status(*told)

    def _find_handler(self) -> bool:
        """Whether there is one; if not the caller has been told."""
        try:
            self._handler = self._server.handler_of(self)
        except Exception as error:  # noqa: BLE001 - whatever it is the caller is told something
            self._failed(error)
            return False
        if self._handler is None:
            self._send_status(_UNIMPLEMENTED, "Method not found!", ())
            return False
        if type(self._handler) is Refused:
            self._send_status(*self._handler)
            return False
        return True

    def watch(self) -> None:
        """From now on it is noticed if its caller goes."""
        if not self._is_watched and not self._has_sent_status:
            self._is_watched = True
            operation = cygrpc.ReceiveCloseOnServerOperation(_NO_FLAGS)
            self._call.start_server_batch((operation,), Tag(self._closed, _was_not_cancelled))

    def _closed(self, event: Event) -> None:
        """The call is over, for its caller."""
        if event.batch_operations[0].cancelled():
            self._is_cancelled = True
            if self._task is not None and self._is_served and not self._has_sent_status:
                self._task.cancel()

    def _request_came(self, event: Event) -> None:
        self._server.awaited.came(self)
        message = event.batch_operations[0].message()
        if message is None:  # the caller has gone before it had sent the request
            self._has_sent_status = True
        elif self._has_sent_status:  # it was too late
            return
        elif self._handler is not None or self._find_handler():
            self._run(self._serve_request(message))
            if self._handler.response_streaming:  # its end must be heard of before what its caller does next
                self.watch()

    def _run(self, serving: Any) -> None:
        self._server.entered(self)
        self._task = self._completions.loop.create_task(serving)

    async def _serve_request(self, message: bytes) -> None:
        handler = self._handler
        try:
            self._is_served = True
            if self._is_cancelled:  # a task that is cancelled before its first step never takes that
                return
            decode = handler.request_deserializer
            request = message if decode is None else decode(message)
            del message  # else it is there as long as the call: a large one by far too long
            if handler.response_streaming:
                await self._stream(handler.unary_stream, request)
            else:
                self._answer(await handler.unary_unary(request, self))
        except BaseException as error:  # noqa: BLE001 - as above
            self._failed(error)
        finally:
            self._left()

    async def _serve_requests(self) -> None:
        handler = self._handler
        try:
            self._is_served = True
            if self._is_cancelled:
                return
            if handler.response_streaming:
                await self._stream(handler.stream_stream, _Requests(self))
            else:
                self._answer(await handler.stream_unary(_Requests(self), self))
        except BaseException as error:  # noqa: BLE001 - as above
            self._failed(error)
        finally:
            self._left()

    async def _stream(self, behaviour: Any, request: Any) -> None:
        if inspect.isasyncgenfunction(behaviour):
            async with contextlib.aclosing(behaviour(request, self)) as replies:
                async for reply in replies:
                    await self.write(reply)
        else:
            await behaviour(request, self)
        self._check_running()
        self._send_status(_number(self._code), self._details, self._trailing_metadata)

    def _answer(self, reply: Any) -> None:
        self._check_running()
        encode = self._handler.response_serializer
        code = _number(self._code)
        message = (reply if encode is None else encode(reply)) if code == _OK else b""
        operations = (
            cygrpc.SendMessageOperation(message, _NO_FLAGS),
            cygrpc.SendStatusFromServerOperation(self._trailing_metadata, code, self._details, _NO_FLAGS),
        )
        self._send_last(operations)

    def _failed(self, error: BaseException) -> None:
        """Tells the caller of what the handler raised, unless it was told already."""
        if error is self._abort_error:
            return
        if isinstance(error, asyncio.CancelledError):
            if not self._is_cancelled and not self._has_sent_status:  # nobody but this process wanted it to end
                self._call.cancel()
            return
        if isinstance(error, grpc.aio.InternalError) or (
            self._has_sent_status and isinstance(error, grpc.aio.UsageError)
        ):
            return  # it wrote to a caller who has gone, or behind the end
        if not isinstance(error, Exception):
            self._call.cancel()
            raise error
        log.error("call_failed", path=self.path, exc_info=error)
        if not self._has_sent_status:
            code = _number(self._code)
            details = f"Unexpected {type(error)}: {error}"
            self._send_status(_UNKNOWN if code == _OK else code, details, self._trailing_metadata)

    def _left(self) -> None:
        self._task = self._abort_error = None  # both know of this call, too
        self._has_sent_status = True  # from here on it must not begin anything
        self._server.left(self)
        for callback in self._done_callbacks:
            callback()

    def _check_running(self) -> None:
        if self._abort_error is not None:
            raise self._abort_error
        if self._has_sent_status:
            raise grpc.aio.UsageError(_FINISHED)

    # What is sent.

    def _with_metadata(self, operations: tuple[Any, ...]) -> tuple[Any, ...]:
        if self._has_sent_metadata:
            return operations
        return (cygrpc.SendInitialMetadataOperation((), _NO_FLAGS), *operations)

    def _send_status(self, code: int, details: str, trailing_metadata: Any) -> None:
        self._send_last((cygrpc.SendStatusFromServerOperation(trailing_metadata, code, details, _NO_FLAGS),))

    def _send_last(self, operations: tuple[Any, ...]) -> None:
        if not self._is_watched:  # each call has to be watched once
            operations = (*operations, cygrpc.ReceiveCloseOnServerOperation(_NO_FLAGS))
        failed = self._call.start_server_batch(self._with_metadata(operations), None)
        self._has_sent_metadata = self._has_sent_status = self._is_watched = True
        if failed:  # such as metadata that cannot be sent
            log.error("status_not_sent", path=self.path, error=failed)
            self._call.cancel()

    async def _send(self, operations: tuple[Any, ...]) -> None:
        """Sends, and waits until gRPC has taken it over."""
        sent: asyncio.Future[bool] = self._completions.loop.create_future()
        if self._call.start_server_batch(operations, Tag(functools.partial(_set, sent))):
            raise grpc.aio.InternalError("gRPC did not begin to send")
        self._completions.look()
        if sent.done():  # nobody else had a turn: after some of these they have one
            self._sent_at_once += 1
            if self._sent_at_once % _UNBROKEN == 0:
                await asyncio.sleep(0)
        if not await sent:
            raise grpc.aio.InternalError("the caller has gone")

    async def write(self, message: Any) -> None:
        """Sends one reply of a stream; waits until gRPC has taken it over. Raises InternalError if the caller has
        gone."""
        await self._write(message, _NO_FLAGS)

    async def write_ahead(self, message: Any) -> None:
        """The same for one that the next is to be written right behind, or the end: it may leave only with that."""
        # With the metadata in front of the first gRPC says that it has taken it over when it has left.
        await self._write(message, cygrpc.WriteFlag.buffer_hint if self._has_sent_metadata else _NO_FLAGS)

    async def _write(self, message: Any, flags: int) -> None:
        self._check_running()
        encode = self._handler.response_serializer
        operation = cygrpc.SendMessageOperation(message if encode is None else encode(message), flags)
        operations = self._with_metadata((operation,))
        self._has_sent_metadata = True
        await self._send(operations)

    async def send_initial_metadata(self, initial_metadata: Any) -> None:
        """As grpc.aio's. Raises UsageError if it has gone already."""
        self._check_running()
        if self._has_sent_metadata:
            raise grpc.aio.UsageError("the initial metadata has been sent")
        self._has_sent_metadata = True
        await self._send((cygrpc.SendInitialMetadataOperation(tuple(initial_metadata), _NO_FLAGS),))

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        """Ends the call with this status. Never returns: raises AbortError, which the handler must let through."""
        if self._abort_error is not None:
            raise grpc.aio.UsageError("the call was aborted already")
        self._code = code
        self._details = details or self._details
        self._trailing_metadata = tuple(trailing_metadata) or self._trailing_metadata
        self._abort_error = grpc.aio.AbortError("aborted by its handler")
        if not self._has_sent_status:
            self._send_status(_number(code), self._details, self._trailing_metadata)
        raise self._abort_error

    async def abort_with_status(self, status: Any) -> NoReturn:
        """The same with a status that is whole."""
        await self.abort(status.code, status.details, status.trailing_metadata)

    # What is read.

    def _receive(self, then: Callable[[Event], None]) -> None:
        self._call.start_server_batch((cygrpc.ReceiveMessageOperation(_NO_FLAGS),), Tag(then))

    async def read(self) -> Any:
        """The next request of a stream; EOF behind the last. If it is cancelled nothing is lost: the next one gets
        what comes. One at a time."""
        self._check_running()
        if not self._messages:
            if not self._is_reading:
                self._is_reading = True
                self._receive(self._message_came)
            self._reader = self._completions.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
            self._check_running()
        message = self._messages.pop()
        if message is None:
            self._messages.append(None)  # and for whoever asks again
            return grpc.aio.EOF
        decode = self._handler.request_deserializer
        return message if decode is None else decode(message)

    def _message_came(self, event: Event) -> None:
        self._is_reading = False
        self._messages.append(event.batch_operations[0].message())
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # Of its end.

    def add_done_callback(self, callback: Any) -> None:
        """Called with this when the handler has ended."""
        self._done_callbacks.append(functools.partial(callback, self))

    def done(self) -> bool:
        """Whether the status has been sent."""
        return self._has_sent_status

    def cancelled(self) -> bool:
        """Whether the caller has gone before it was."""
        return self._is_cancelled


class _Requests:
    """The requests of a stream, read when they are asked for."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        request = await self._call.read()
        if request is grpc.aio.EOF:
            raise StopAsyncIteration
        return request


def _was_not_cancelled(event: Event) -> bool:
    return not event.batch_operations[0].cancelled()


def _set(done: asyncio.Future[bool], event: Event) -> None:
    if not done.done():
        done.set_result(event.success)


def _number(code: Any) -> int:
    """Of a code as a handler may give it: None, a number, or one of gRPC's."""
    if code is None:
        return int(_OK)
    return code if isinstance(code, int) else int(code.value[0])
