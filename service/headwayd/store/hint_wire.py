"""The two connections that hear from one server what may have changed, kept open.

One reads keys with client tracking on; the server then tells the other, which is subscribed, as soon as one of them
changes. The same subscription carries what scripts publish. What is asked on the first goes there together, because
after a reconnect everybody has something to ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import structlog
from redis import exceptions as redis_errors
from redis.asyncio.connection import AbstractConnection

from headwayd.domain.kept import end, kept
from headwayd.store.connections import ANSWERS_TO_OPEN, ConnectionSource, ask, send
from headwayd.store.trouble import word_of

INVALIDATE = b"__redis__:invalidate"
_PING_EVERY_S = 5.0
# Of two connections, and to three questions.
_ANSWERS = 2 * ANSWERS_TO_OPEN + 3
_COMMANDS_TOGETHER = 100  # in one piece, or one question's: what comes back is read in one turn of the loop
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.5
_TROUBLE = (redis_errors.RedisError, OSError, TimeoutError)
_MOVING = frozenset({"MOVED", "ASK", "TRYAGAIN"})
log = structlog.get_logger(__name__)


class _Question:
    """Commands of one who waits for what they answer."""

    def __init__(self, *commands: tuple[str, ...]) -> None:
        self.commands = commands
        self.answer: asyncio.Future[list[int] | None] = asyncio.get_running_loop().create_future()

    def end(self, answer: list[int] | None) -> None:
        """Whoever asked may have gone, or have been answered."""
        if not self.answer.done():
            self.answer.set_result(answer)


class HintWire:
    """Hears one server from `start` to `close`. `on_message` gets channel and content, `on_connected` is called after
    each connect, when what happened before was missed; both on the event loop, and must not block."""

    def __init__(
        self,
        source: ConnectionSource,
        *,
        channels: Iterable[bytes],
        call_timeout_s: float,
        on_message: Callable[[bytes, Any], None],
        on_connected: Callable[[], None],
    ) -> None:
        self._source = source
        self._channels = (INVALIDATE, *channels)
        self._call_timeout_s = call_timeout_s
        self._on_message = on_message
        self._on_connected = on_connected
        self._reader: AbstractConnection | None = None
        self._is_to_renew = asyncio.Event()
        self._questions: deque[_Question] = deque()
        self._are_questions = asyncio.Event()
        self._is_connected = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._pong = asyncio.Event()

    @property
    def is_up(self) -> bool:
        """Whether changes can be asked for."""
        return self._reader is not None

    def start(self) -> None:
        """Begins to listen, and goes on trying."""
        self._task = kept(self._keep_listening(), "hints")

    async def connected(self) -> None:
        """Returns when it is connected."""
        await self._is_connected.wait()

    async def close(self) -> None:
        """Stops listening."""
        self._is_closed = True  # a group of tasks forgets a cancellation that comes while one of its own fails
        if self._task is not None:
            await end([self._task])
            self._task = None

    def renew(self) -> None:
        """The server may not be the right one any more: connects anew."""
        self._is_to_renew.set()

    async def watch(self, *groups: Iterable[str]) -> list[int] | None:
        """From now on the next change of each key is heard. How many keys of each group there are; None if the server
        does not serve them now. Does nothing while there is no connection; then, or when it breaks, nothing is
        known."""
        if self._reader is None:
            return []
        question = _Question(*(("EXISTS", *keys) for keys in groups))
        self._questions.append(question)
        self._are_questions.set()
        return await question.answer

    def _next_questions(self) -> list[_Question]:
        """Those that go together."""
        some: list[_Question] = []
        room = _COMMANDS_TOGETHER
        while self._questions and (not some or len(self._questions[0].commands) <= room):
            question = self._questions.popleft()
            if not question.answer.done():
                some.append(question)
                room -= len(question.commands)
        return some

    async def _keep_asking(self, reader: AbstractConnection) -> None:
        """Until an answer does not come in time. Whoever waits has then been answered, too: that nothing is known."""
        try:
            while True:
                self._are_questions.clear()
                while some := self._next_questions():
                    await self._ask(reader, some)
                await self._are_questions.wait()
        finally:
            self._let_go()

    async def _ask(self, reader: AbstractConnection, questions: Sequence[_Question]) -> None:
        try:
            async with asyncio.timeout(self._call_timeout_s):
                await send(reader, [command for question in questions for command in question.commands])
                for question in questions:
                    counts = [await self._count(reader) for _ in question.commands]
                    known = [count for count in counts if count is not None]
                    question.end(known if len(known) == len(counts) else None)
        finally:
            for question in questions:
                question.end([])

    @staticmethod
    async def _count(reader: AbstractConnection) -> int | None:
        """One reply; None if the server does not serve these keys now."""
        try:
            count: int = await reader.read_response()
        except redis_errors.ResponseError as error:
            if word_of(error) in _MOVING:
                return None
            raise
        return count

    def _let_go(self) -> None:
        """Nothing can be asked for any more."""
        self._reader = None
        while self._questions:
            self._questions.popleft().end([])

    async def _keep_listening(self) -> None:
        while not self._is_closed:
            try:
                await self._listen()
            except Exception:  # loop guard: a defect of who is told must not leave this process deaf
                log.exception("hints.failed")
                await asyncio.sleep(_LONGEST_PAUSE_S)

    async def _listen(self) -> None:
        """Again after every loss."""
        pause_s = _SHORTEST_PAUSE_S
        while not self._is_closed:
            self._is_to_renew.clear()  # before: who asks for a new connection meanwhile must get it
            try:
                async with asyncio.timeout(_ANSWERS * self._call_timeout_s):
                    listener, reader = await self._connect()
            except _TROUBLE as error:
                log.debug("hints.unreachable", error=type(error).__name__)
                await asyncio.sleep(pause_s * (0.5 + random.random()))
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                continue
            pause_s = _SHORTEST_PAUSE_S
            self._reader = reader
            self._is_connected.set()
            try:
                self._on_connected()
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._hear(listener), name="hear")
                    group.create_task(self._keep_asking(reader), name="ask")
                    group.create_task(self._keep_pinging(listener), name="ping")
            except* _TROUBLE as errors:
                log.info("hints.lost", error=type(errors.exceptions[0]).__name__)
            finally:
                self._is_connected.clear()
                self._let_go()
                for connection in (reader, listener):
                    with contextlib.suppress(*_TROUBLE):
                        await connection.disconnect(nowait=True)

    async def _connect(self) -> tuple[AbstractConnection, AbstractConnection]:
        listener = await self._source.open()
        reader: AbstractConnection | None = None
        try:
            number = await ask(listener, "CLIENT", "ID")
            await send(listener, [("SUBSCRIBE", *self._channels)])
            for _ in self._channels:
                await listener.read_response()
            reader = await self._source.open()
            await ask(reader, "CLIENT", "TRACKING", "ON", "REDIRECT", number)
            listener.socket_timeout = None  # what it hears may be long in coming
            reader.socket_timeout = None  # `_ask` has one timer for all that goes together
        except BaseException:
            for connection in (listener, reader):
                if connection is not None:
                    with contextlib.suppress(*_TROUBLE):
                        await connection.disconnect(nowait=True)
            raise
        return listener, reader

    async def _hear(self, listener: AbstractConnection) -> None:
        while True:
            message = await listener.read_response()
            self._pong.set()  # whatever is heard shows that the connection lives
            if isinstance(message, list) and len(message) == 3 and message[0] == b"message":
                self._on_message(message[1], message[2])

    async def _keep_pinging(self, listener: AbstractConnection) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PING_EVERY_S):
                    await self._is_to_renew.wait()
                    raise redis_errors.ConnectionError("the server may not be the right one any more")
            self._pong.clear()
            async with asyncio.timeout(2 * self._call_timeout_s):
                await send(listener, [("PING",)])
                question = _Question(("PING",))
                self._questions.appendleft(question)  # before all that wait: only what is under way goes first
                self._are_questions.set()
                await question.answer
                await self._pong.wait()
