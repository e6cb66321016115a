"""Hears that something may have changed for those who wait: two connections for a whole process, and no polling.

One connection reads the keys that somebody waits on with client tracking on; the store then tells the other connection,
which is subscribed, as soon as one of them changes, whoever changed it: a Headway script or a foreign client. The same
subscription carries what scripts publish: a producer's turn, due times, and kicks. All of it is only a hint. Nothing
is lost if one is: after every reconnect everybody is told to look again, and the engine looks by itself from time to
time.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterable
from typing import Any

import structlog
from redis import exceptions as redis_errors
from redis.asyncio.connection import AbstractConnection

from headwayd.store.connections import ConnectionSource, ask, send
from headwayd.store.keys import (
    DUE_CHANNEL,
    WAKE_CHANNEL,
    base_key,
    blocked_at_keys,
    empty_line_keys,
    looked_at_keys,
    stood_at_keys,
    watched_keys,
)

_INVALIDATE = b"__redis__:invalidate"
_KICK = b"kick"
_PING_EVERY_S = 5.0
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.5
_TROUBLE = (redis_errors.RedisError, OSError, TimeoutError)
log = structlog.get_logger(__name__)

HintListener = Callable[[str | None], None]
DueListener = Callable[[str, int], None]


class Interest:
    """Keys whose next change is told to one listener, with the queue's name, whoever else looks at the same queue."""

    def __init__(self, listener: Callable[[str], None] = lambda _queue: None) -> None:
        self.listener = listener
        self.queues: dict[bytes, str] = {}  # by key, as long as its change has not been heard

    def tell(self, keys: Iterable[bytes]) -> None:
        """These have changed."""
        for queue in {queue for key in keys if (queue := self.queues.pop(key, None)) is not None}:
            self.listener(queue)


class Hints:
    """The two connections, kept open as long as the process serves. Listeners are called on the event loop and must not
    block: hints with a queue's name (None: any), due times with a queue's name and milliseconds since 1970. Changes of
    the two lines of those who wait are told apart: they give nobody anything to lease, or room."""

    def __init__(
        self, source: ConnectionSource, *, prefix: str, channels: str, process: str, call_timeout_s: float
    ) -> None:
        self._source = source
        self._prefix = prefix
        self._call_timeout_s = call_timeout_s
        self._wake = f"{channels}{WAKE_CHANNEL}{process}".encode()
        self._due = f"{channels}{DUE_CHANNEL}".encode()
        self._waited_for = Interest(self._hint)
        self.standing = Interest()
        self.blocked = Interest()
        self._interests = (self._waited_for, self.standing, self.blocked)
        self._reader: AbstractConnection | None = None
        self._reader_lost = asyncio.Event()
        self._lock = asyncio.Lock()
        self._is_connected = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._pong = asyncio.Event()
        self.on_hint: HintListener = lambda _queue: None
        self.on_due: DueListener = lambda _queue, _due_ms: None
        self.on_reconnect: Callable[[], None] = lambda: None

    @property
    def is_started(self) -> bool:
        """Whether it listens, or tries to."""
        return self._task is not None

    async def start(self, *, wait_s: float) -> None:
        """Begins to listen; returns when connected, or after `wait_s` (it goes on trying)."""
        self._task = asyncio.create_task(self._keep_listening(), name="hints")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._is_connected.wait()

    async def close(self) -> None:
        """Stops listening."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def arm(self, queue: str, *, until_drained: bool) -> bool:
        """From now on a change of the queue's keys is heard, once: then it must be armed again. What changed before
        is not heard, so look after arming. Does nothing while there is no connection: reconnecting tells everybody
        anyway. False if a look for something to lease would be in vain: the queue is open, empty, and nobody's."""
        base = base_key(self._prefix, queue)
        counts = await self._arm(
            self._waited_for, queue, *empty_line_keys(base), watched_keys(base, until_drained=until_drained)
        )
        return counts[:2] != [0, len(empty_line_keys(base)[1])]

    async def arm_watch(self, queue: str) -> None:
        """The same for those who only look."""
        await self._arm(self._waited_for, queue, looked_at_keys(base_key(self._prefix, queue)))

    async def arm_standing(self, queue: str) -> None:
        """The same for the consumer line."""
        await self._arm(self.standing, queue, stood_at_keys(base_key(self._prefix, queue)))

    async def arm_blocked(self, queue: str) -> None:
        """The same for the producer line."""
        await self._arm(self.blocked, queue, blocked_at_keys(base_key(self._prefix, queue)))

    async def _arm(self, interest: Interest, queue: str, *groups: tuple[str, ...]) -> list[int]:
        """How many keys there are of each group; nothing if that is not known."""
        async with self._lock:
            reader = self._reader
            if reader is None:
                return []
            for key in groups[-1]:
                interest.queues[key.encode()] = queue
            try:
                await send(reader, [("EXISTS", *keys) for keys in groups])
                return [await reader.read_response() for _ in groups]
            except _TROUBLE:
                await self._spoil(reader)
                return []
            except asyncio.CancelledError:
                await self._spoil(reader)
                raise

    async def _spoil(self, reader: AbstractConnection) -> None:
        if self._reader is reader:
            self._reader = None
            self._reader_lost.set()
        with contextlib.suppress(*_TROUBLE):
            await reader.disconnect(nowait=True)

    async def _keep_listening(self) -> None:
        pause_s = _SHORTEST_PAUSE_S
        while True:
            try:
                async with asyncio.timeout(2 * self._call_timeout_s):
                    listener, reader = await self._connect()
            except _TROUBLE as error:
                log.debug("hints.unreachable", error=type(error).__name__)
                await asyncio.sleep(pause_s * (0.5 + random.random()))
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                continue
            pause_s = _SHORTEST_PAUSE_S
            self._reader = reader
            self._reader_lost.clear()
            self._is_connected.set()
            self.on_hint(None)
            self.on_reconnect()
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._hear(listener), name="hear")
                    group.create_task(self._keep_pinging(listener, reader), name="ping")
            except* _TROUBLE as errors:
                log.info("hints.lost", error=type(errors.exceptions[0]).__name__)
            finally:
                self._is_connected.clear()
                for interest in self._interests:
                    interest.queues.clear()
                await self._spoil(reader)
                with contextlib.suppress(*_TROUBLE):
                    await listener.disconnect(nowait=True)

    async def _connect(self) -> tuple[AbstractConnection, AbstractConnection]:
        listener = await self._source.open(timeout_s=0)
        reader: AbstractConnection | None = None
        try:
            number = await ask(listener, "CLIENT", "ID")
            channels = (_INVALIDATE, self._wake, self._due)
            await send(listener, [("SUBSCRIBE", *channels)])
            for _ in channels:
                await listener.read_response()
            reader = await self._source.open()
            await ask(reader, "CLIENT", "TRACKING", "ON", "REDIRECT", number)
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
                self._dispatch(message[1], message[2])

    def _dispatch(self, channel: bytes, content: Any) -> None:
        if channel == _INVALIDATE:
            if content is None:
                self.on_hint(None)
                return
            for interest in self._interests:
                interest.tell(content)
        elif channel == self._wake:
            self._tell(content)
        elif channel == self._due:
            what, _, base = content.partition(b" ")
            if what == _KICK:
                self._tell(base)
            elif (queue := self._queue_of(base)) is not None and what.isdigit():
                self.on_due(queue, int(what))

    def _hint(self, queue: str) -> None:
        self.on_hint(queue)

    def _tell(self, base: bytes) -> None:
        queue = self._queue_of(base)
        if queue is not None:
            self.on_hint(queue)

    def _queue_of(self, base: bytes) -> str | None:
        try:
            return base.decode()[len(self._prefix) + 1 :]
        except UnicodeDecodeError:
            return None

    async def _keep_pinging(self, listener: AbstractConnection, reader: AbstractConnection) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PING_EVERY_S):
                    await self._reader_lost.wait()
                    raise redis_errors.ConnectionError("the tracking connection was lost")
            self._pong.clear()
            async with asyncio.timeout(2 * self._call_timeout_s):
                await send(listener, [("PING",)])
                async with self._lock:
                    if self._reader is not reader:
                        raise redis_errors.ConnectionError("the tracking connection was lost")
                    await ask(reader, "PING")
                await self._pong.wait()
