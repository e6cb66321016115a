"""A connection to the store that is asked in pipelines, and tells each reply in the turn of the loop in which it came.

redis-py opens the connection, with all there is to know of addresses, TLS, passwords and databases. Then its bytes are
taken over here. Through redis-py each pipeline costs a task, a timer and some turns of the loop more, and each reply
six calls: as much as all the rest of a short call, and the store has nothing to do meanwhile.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any, Protocol, cast

import hiredis
from redis import exceptions as redis_errors
from redis.asyncio.connection import AbstractConnection

_LEAST_LOOK_S = 0.001  # the loop's clock has whole milliseconds
_MISSING = object()


class Asker(Protocol):
    """Whoever asks. Neither method may raise."""

    def take(self, reply: Any) -> bool:
        """The next reply, or the error that is one. False if the replies have slipped."""

    def end(self, error: Exception | None) -> None:
        """All replies have come, or, with an error, no more will."""


class Wire(asyncio.Protocol):
    """Takes `connection` over. One pipeline at a time is on it; a reply takes `patience_s` at most. `generation` is
    whatever its owner wants to know it by; `transacts`, whether transactions are permitted on it; `took_s`, how long
    the last pipeline that was answered took."""

    def __init__(
        self, connection: AbstractConnection, *, patience_s: float, generation: int, transacts: bool = False
    ) -> None:
        self.generation = generation
        self.transacts = transacts
        self.took_s = math.inf
        self._loop = asyncio.get_running_loop()
        self._patience_s = patience_s
        self._connection = connection
        stream, parser = cast(Any, connection)._reader, cast(Any, connection)._parser  # noqa: SLF001 - nothing public has them
        self._transport: asyncio.Transport = cast(Any, connection)._writer.transport  # noqa: SLF001
        self._reader = hiredis.Reader(
            protocolError=redis_errors.InvalidResponse, replyError=parser.parse_error, notEnoughData=_MISSING
        )
        self._asker: Asker | None = None
        self._due = 0  # replies
        self._asked_at = 0.0
        self._until = 0.0  # on the loop's clock: when the next must have come
        self._timer: asyncio.TimerHandle | None = None
        self._is_sound = not stream._buffer and not stream.at_eof()  # noqa: SLF001
        self._transport.set_protocol(self)

    @property
    def is_fit(self) -> bool:
        """Whether it can be asked: it stands, and nothing came that nobody asked for."""
        return self._is_sound and not self._transport.is_closing()

    def ask(self, pieces: Sequence[bytes], count: int, asker: Asker) -> None:
        """Sends these bytes, to which there will be so many replies. It must be fit, and nobody else be asking."""
        self._asker, self._due = asker, count
        self._asked_at = time.perf_counter()  # the loop's own clock has whole milliseconds
        self._wait()
        try:
            self._transport.writelines(pieces)
        except (RuntimeError, OSError) as error:  # uvloop: it was reset just now
            self._fail(error)

    def close(self) -> None:
        """Ends the connection. Whoever is asking is told."""
        self._fail(ConnectionAbortedError("closed"))

    # -- what the loop calls ------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _MISSING:
                if not self._is_taken(reply):
                    return
        except redis_errors.InvalidResponse as error:
            self._fail(error)

    def connection_lost(self, error: Exception | None) -> None:
        """There will be no more."""
        self._fail(error or ConnectionResetError("the store hung up"))

    # -- inside -------------------------------------------------------------------------------------------------------

    def _is_taken(self, reply: Any) -> bool:
        asker = self._asker
        if asker is None:
            self._fail(ConnectionError("a reply that nobody asked for"))
            return False
        if not asker.take(reply):
            self._fail(ConnectionError("replies have slipped"))
            return False
        self._due -= 1
        if self._due:
            self._wait()
        else:
            self._asker = None
            self.took_s = time.perf_counter() - self._asked_at
            asker.end(None)
        return True

    def _wait(self) -> None:
        """For the next reply. One timer serves one pipeline after the other: to set it anew for each costs more than to
        look once in a while."""
        self._until = self._loop.time() + self._patience_s
        if self._timer is None:
            self._timer = self._loop.call_at(self._until, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._asker is None:
            return
        left_s = self._until - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(max(left_s, _LEAST_LOOK_S), self._look)
        else:
            self._fail(TimeoutError())

    def _fail(self, error: Exception) -> None:
        self._is_sound = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        cast(Any, self._connection)._close()  # noqa: SLF001 - its public one waits
        if self._asker is not None:
            self._transport.abort()  # nothing of it is to be sent any more
            asker, self._asker = self._asker, None
            asker.end(error)
