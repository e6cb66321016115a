"""One call that streams both ways: writes, reads, and tells how it truly ended."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio

from headway.core.connecting import Connection, not_by_the_service
from headway.core.error import HeadwayError, from_rpc_error
from headway.core.errors import ClientClosed, Unavailable

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
_Value = TypeVar("_Value")

# What grpc.aio (1.76 to 1.85) makes of a write that meets a stream which the other side has just ended. It puts this in
# the place of the true status, which has come before or is about to come.
_MADE_UP = (grpc.StatusCode.INTERNAL, "Internal error from Core")
_CANCELLED = "the service cancelled the call"
_CLOSED = "the connection was closed"
# Nothing more can be read, so the true status is on its way: looked for during a second.
_STATUS_TRIES = 100
_STATUS_PAUSE_SECONDS = 0.01


class Duplex(Generic[_Request, _Response]):
    """A call under way. One task writes and one reads; `cancel` it in any case."""

    def __init__(
        self,
        call: "grpc.aio.StreamStreamCall[_Request, _Response]",
        typed: Callable[[grpc.aio.AioRpcError], HeadwayError] = from_rpc_error,
    ) -> None:
        self._call = call
        self._typed = typed
        # Not by `call.read`, which reads no more once there is a status: then the answers that are left would be lost,
        # and with them the true status, which comes behind them.
        self._answers = aiter(call)
        self._error: HeadwayError | None = None  # None once it has ended: it ended well
        self._has_ended = False
        call.add_done_callback(self._note_end)

    @classmethod
    def begin(
        cls, connection: Connection, rpc: "grpc.aio.StreamStreamMultiCallable[_Request, _Response]"
    ) -> "Duplex[_Request, _Response]":
        """Begins a call. It has no deadline: pings find out if the other side is gone. Raises ClientClosed."""

        def typed(error: grpc.aio.AioRpcError) -> HeadwayError:
            """A service process that ends cancels, without a word, calls that it has not begun: then it is as away as
            one that has gone. What else is cancelled was so because the client is closed."""
            told = from_rpc_error(error)
            if told.reason or told.code is not grpc.StatusCode.CANCELLED:
                return told
            return ClientClosed(_CLOSED) if connection.is_closed else Unavailable(_CANCELLED)

        if connection.is_closed:
            raise ClientClosed(_CLOSED)
        return cls(rpc(metadata=connection.metadata), typed)

    async def write(self, request: _Request) -> bool:
        """Sends one; waits while the other side does not read. False: the stream is over, and reading tells why."""
        try:
            await self._call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return False
        return True

    async def read(self) -> _Response | None:
        """Waits for the next answer; None if the stream has ended with OK. Raises HeadwayError for any other end."""
        try:
            return await anext(self._answers)
        except (grpc.aio.AioRpcError, StopAsyncIteration):
            pass
        except asyncio.CancelledError as ended:
            if not isinstance(not_by_the_service(ended), HeadwayError):
                raise
            # Not this task was cancelled but the call, as all are when the client is closed.
        for _ in range(_STATUS_TRIES):
            if self._call.done():
                self._note_end(self._call)  # gRPC calls back only once, and the true status may come second
            if self._has_ended:
                break
            await asyncio.sleep(_STATUS_PAUSE_SECONDS)
        else:
            raise Unavailable("the stream broke")
        if self._error is not None:
            raise self._error
        return None

    async def done_writing(self) -> None:
        """Says that nothing more will be written."""
        await self._call.done_writing()

    def cancel(self) -> None:
        """Ends the call, if it has not ended."""
        self._call.cancel()

    def _note_end(self, call: Any) -> None:
        """Takes the status, unless it is made up or the true one is known."""
        if self._has_ended:
            return
        code, details = _at_once(call.code()), _at_once(call.details())
        if (code, details) == _MADE_UP:
            return
        if code is not grpc.StatusCode.OK:
            trailing = _at_once(call.trailing_metadata())
            self._error = self._typed(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details))
        self._has_ended = True


def _at_once(asked: Coroutine[Any, Any, _Value]) -> _Value:
    """The answer of a coroutine that has nothing to wait for, since the status is set. Asked for in a task of its own,
    it might come too late and be the one made up."""
    try:
        asked.send(None)
    except StopIteration as answered:
        value: _Value = answered.value
        return value
    asked.close()
    raise AssertionError("the status of a call that has ended is there")
