"""Streams of replies: sent one by one, and ended in good order, whoever ends them.

A call that streams its replies is an async generator in the servicer. grpc.aio must not drive it: when a call is
cancelled it drops the generator where it stands, and the clean-up is left to the garbage collector. So a stream is
driven here, in a task of its own. That is cancelled once, however often the call is, and the call ends when the
generator's clean-up has ended. Only a clean-up that began by itself, because the generator came to its end, may meet
that one cancellation: what has to be done in any case it must shield.

Where the requests are a stream, too, going down first ends that one, with ShuttingDown: so what was asked before is
still done and answered, and the caller knows how far it came.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc.aio
from grpc.aio import ServicerContext

from headwayd.domain.errors import HeadwayError, OutcomeUnknown, Overloaded, ShuttingDown
from headwayd.rpc.decoding import Undecodable
from headwayd.rpc.encoded import is_followed
from headwayd.rpc.incidents import incident
from headwayd.rpc.room import Large, Room

# A reply on its way has this long to leave before a stream ends over it: gRPC can send no status behind it otherwise.
_REPLY_ON_ITS_WAY_S = 1.0
# What was asked before the requests were ended has this long to be done: longer than any step of the store takes.
_LAST_ANSWERS_S = 3.0


class Requests:
    """The requests of a stream, one by one. Raises the error of the first that could not be read, and what `end` was
    given after that.

    With `room` each has one reply, in order: until that has gone it takes room, and is waited with while there is none.
    Without, nobody knows which reply is whose; only to the first there is none.
    """

    def __init__(self, requests: AsyncIterator[Any], *, room: Room | None = None) -> None:
        self._requests = aiter(requests)
        self._is_ended = False
        self._why_ended: HeadwayError = _going_down()
        self._reading: asyncio.Timeout | None = None
        self._room = room
        self._sizes: deque[int] = deque()  # of what was not answered yet
        self._taken_count = 0

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        if self._is_ended:
            raise self._why_ended
        try:
            async with asyncio.timeout(None) as self._reading:
                request = await anext(self._requests)
                size = request.size if type(request) is Large else 0
                if self._room is not None:
                    if size:
                        await self._room.wait(size)
                    self._sizes.append(size)
                self._taken_count += 1
        except TimeoutError:
            raise self._why_ended from None
        finally:
            self._reading = None
        if type(request) is Undecodable:
            raise request.error
        return request.request if type(request) is Large else request

    @property
    def has_unanswered(self) -> bool:
        """Whether some that were taken may have been done, and have had no reply."""
        return bool(self._sizes) if self._room is not None else self._taken_count > 1

    def answered(self) -> None:
        """A reply has gone: what the first request took is free."""
        if self._room is not None and self._sizes:
            self._room.give(self._sizes.popleft())

    def close(self) -> None:
        """The stream is over: everything that it took is free."""
        while self._sizes:
            self.answered()

    def end(self, why: HeadwayError) -> None:
        """No more requests are taken."""
        self._is_ended = True
        self._why_ended = why
        if self._reading is not None:
            self._reading.reschedule(asyncio.get_running_loop().time())


def _going_down() -> ShuttingDown:
    return ShuttingDown("this service process is going down")


class Stream:
    """One stream of `replies`, to `requests` if these are a stream, too. `run` it once; `end` may be called at any
    time."""

    def __init__(
        self,
        replies: AsyncGenerator[Any, None],
        context: ServicerContext[Any, Any],
        method: str,
        *,
        requests: Requests | None = None,
    ) -> None:
        self._replies = replies
        self._requests = requests
        self._context = context
        self._write_ahead = getattr(context, "write_ahead", context.write)  # only a call of our own server can
        self._method = method
        self._writing_since: float | None = None  # on the loop's clock
        self._why_ended: HeadwayError | None = None
        self._is_unread = False
        self._is_ending = False  # from here on a cancellation would only cut the clean-up short
        self._task: asyncio.Task[None] = asyncio.create_task(self._send_all(), name=method)

    async def run(self) -> None:
        """Sends all. Raises what the generator raises, what `end` was given, CancelledError if the caller went; in
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
        if self._task.cancelled() and self._is_unread:
            unread = Overloaded("the replies of this stream are not read", metadata={"limit": "write_timeout"})
            raise self._cut_off_by(unread)
        if self._task.cancelled() and self._why_ended is not None:
            raise self._cut_off_by(self._why_ended)
        self._task.result()

    def end(self, why: HeadwayError | None = None) -> None:
        """No further reply, but to requests that were taken, and then `why`: that the service goes down, unless said
        otherwise. Only the first time counts."""
        if self._why_ended is not None:
            return
        self._why_ended = why or _going_down()
        loop = asyncio.get_running_loop()
        if self._requests is not None:
            self._requests.end(self._why_ended)
            loop.call_later(_LAST_ANSWERS_S, self._cancel)
        if self._writing_since is not None:
            loop.call_later(_REPLY_ON_ITS_WAY_S, self._end_over_a_reply, self._writing_since)
        elif self._requests is not None:
            return
        else:
            self._cancel()

    def end_if_unread(self, since: float) -> None:
        """Ends it if a reply has been on its way since before that instant of the loop's clock."""
        if self._writing_since is not None and self._writing_since < since:
            self._is_unread = True
            self._cancel()

    def _end_over_a_reply(self, since: float) -> None:
        if self._writing_since == since:  # another one may be on its way by now
            self._cancel()

    def _cut_off_by(self, why: HeadwayError) -> HeadwayError:
        """What the caller is told: not that nothing happened if something may have, and its reply did not leave."""
        if self._requests is None or not self._requests.has_unanswered:
            return why
        return OutcomeUnknown("the stream ended before all was answered", metadata={"cause": "UNREAD"})

    def _cancel(self) -> None:
        if not self._is_ending:
            self._is_ending = True
            self._task.cancel()

    async def _send_all(self) -> None:
        clock = asyncio.get_running_loop().time
        async with contextlib.aclosing(self._replies) as replies:
            async for reply in replies:
                self._writing_since = clock()
                try:
                    await (self._write_ahead(reply) if is_followed(reply) else self._context.write(reply))
                except grpc.aio.BaseError as error:  # the caller has gone; the call's own cancellation comes later
                    self._is_ending = True
                    raise asyncio.CancelledError from error
                finally:
                    self._writing_since = None
                    if self._requests is not None:
                        self._requests.answered()
                if self._why_ended is not None and self._requests is None:
                    self._is_ending = True
                    raise asyncio.CancelledError
