"""Streams of replies: sent one by one, and ended in good order, whoever ends them.

A call that streams its replies is an async generator in the servicer. grpc.aio must not drive it: when a call is
cancelled it drops the generator where it stands, and the clean-up is left to the garbage collector. So a stream is
driven here, in a task of its own. That is cancelled once, however often the call is, and the call ends when the
generator's clean-up has ended. Only a clean-up that began by itself, because the generator came to its end, may meet
that one cancellation: what has to be done in any case it must shield.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc.aio
from grpc.aio import ServicerContext

from headwayd.domain.errors import HeadwayError, ShuttingDown
from headwayd.rpc.decoding import Undecodable
from headwayd.rpc.incidents import incident

# A reply on its way has this long to leave before a stream ends over it: gRPC can send no status behind it otherwise.
_REPLY_ON_ITS_WAY_S = 1.0


class Requests:
    """The requests of a stream, one by one. Raises the error of the first that could not be read."""

    def __init__(self, requests: AsyncIterator[Any]) -> None:
        self._requests = aiter(requests)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        request = await anext(self._requests)
        if type(request) is Undecodable:
            raise request.error
        return request


class Stream:
    """One stream of `replies`. `run` it once; `end` may be called at any time."""

    def __init__(self, replies: AsyncGenerator[Any, None], context: ServicerContext[Any, Any], method: str) -> None:
        self._replies = replies
        self._context = context
        self._method = method
        self._is_writing = False
        self._is_told_to_end = False
        self._is_ending = False  # from here on a cancellation would only cut the clean-up short
        self._task: asyncio.Task[None] = asyncio.create_task(self._send_all(), name=method)

    async def run(self) -> None:
        """Sends all. Raises what the generator raises, ShuttingDown after `end`, CancelledError if the caller went; in
        any case only after the clean-up, which takes no longer than the store calls in it may."""
        try:
            await asyncio.wait({self._task})
        except asyncio.CancelledError:
            self._cancel()
            while not self._task.done():
                with contextlib.suppress(asyncio.CancelledError):  # the first one is raised below
                    await asyncio.wait({self._task})
            error = None if self._task.cancelled() else self._task.exception()
            if error is not None and not isinstance(error, HeadwayError):
                incident(error, self._method)
            raise
        if self._task.cancelled() and self._is_told_to_end:
            raise ShuttingDown("this service process is going down")
        self._task.result()

    def end(self) -> None:
        """The service goes down: no further reply, SHUTTING_DOWN."""
        self._is_told_to_end = True
        if self._is_writing:
            asyncio.get_running_loop().call_later(_REPLY_ON_ITS_WAY_S, self._end_over_a_reply)
        else:
            self._cancel()

    def _end_over_a_reply(self) -> None:
        if self._is_writing:
            self._cancel()

    def _cancel(self) -> None:
        if not self._is_ending:
            self._is_ending = True
            self._task.cancel()

    async def _send_all(self) -> None:
        async with contextlib.aclosing(self._replies) as replies:
            async for reply in replies:
                self._is_writing = True
                try:
                    await self._context.write(reply)
                except grpc.aio.BaseError as error:  # the caller has gone; the call's own cancellation comes later
                    self._is_ending = True
                    raise asyncio.CancelledError from error
                finally:
                    self._is_writing = False
                if self._is_told_to_end:
                    self._is_ending = True
                    raise asyncio.CancelledError
