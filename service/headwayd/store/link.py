"""Sends scripts to the store: calls that arrive in one turn of the event loop go out as one pipeline.

The store answers whatever it found on its connections at one look only when it has done all of that. So of the calls
that take it long only a few are on their way at a time, each by itself, and the others wait here: else the store would
do nothing while this process takes in the answers of all, and this process nothing until the store has done all of the
next.

A call that is cancelled goes on (its script has probably run); whoever needs its late result keeps the task. A reply
must carry the echo of its call: if one does not, replies have slipped, and every connection is dropped. Where replicas
are to have what was written, a WAIT goes behind the scripts on the same connection, one for each pipeline, and nobody
is answered before it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog
from redis import exceptions as redis_errors
from redis.asyncio.connection import AbstractConnection

from headwayd.domain.errors import HeadwayError, OutcomeUnknown, StoreUnavailable
from headwayd.store import trouble
from headwayd.store.connections import ConnectionSource, ask, is_fit, send
from headwayd.store.keys import keys_of_call
from headwayd.store.scripts import Script

Argument = str | bytes | int
_NETWORK_ERRORS = (redis_errors.ConnectionError, redis_errors.TimeoutError, OSError, TimeoutError)
_MOST_CONNECTIONS = 16
_MOST_IN_A_PIPELINE = 200
# Of long calls: one that the store works on, and as many as it needs until the next one comes.
_MOST_LONG = 2
READ_ONLY = frozenset({"describe", "peek", "weigh"})
# How much of the time that a reply may take replicas have of it.
_SHARE_OF_REPLICAS = 0.8
log = structlog.get_logger(__name__)


class ScriptOrder(NamedTuple):
    """A script, whose key and channels it is for, and what else it is told. `is_long`: it takes the store a good part
    of a millisecond or more."""

    script: Script
    base_key: str
    channels: str
    arguments: Sequence[Argument]
    is_long: bool


@dataclass(slots=True, eq=False)
class _Call:
    script: Script
    command: tuple[Argument, ...]
    echo: bytes
    done: asyncio.Future[list[Any]]
    is_sent: bool = False

    @property
    def is_write(self) -> bool:
        return self.script.name not in READ_ONLY

    def fail(self, error: HeadwayError) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def time_is_up(self) -> None:
        if self.is_sent:
            self.fail(trouble.lost(was_silent=True, is_write=self.is_write))
        else:
            self.fail(StoreUnavailable("the store did not answer in time", metadata={"cause": "SILENT"}))


@dataclass(slots=True)
class _Pool:
    idle: list[AbstractConnection] = field(default_factory=list)
    generation: int = 0


class Link:
    """Calls scripts. Owns its connections and the tasks that use them.

    `min_replicas` have what was written before its caller is answered. `on_doubt` is told when the server may not be
    the right one any more: it refused to write, or an answer was lost. `is_cluster`: the server is a node of one.
    """

    def __init__(
        self,
        source: ConnectionSource,
        *,
        call_timeout_s: float,
        min_replicas: int = 0,
        on_doubt: Callable[[], None] | None = None,
        is_cluster: bool = False,
    ) -> None:
        self._source = source
        self._call_timeout_s = call_timeout_s
        self._min_replicas = min_replicas
        self._wait = (b"WAIT", min_replicas, int(call_timeout_s * 1000 * _SHARE_OF_REPLICAS))
        self._on_doubt = on_doubt
        self._is_cluster = is_cluster
        self._pool = _Pool()
        self._places = asyncio.Semaphore(_MOST_CONNECTIONS)
        self._pending: list[_Call] = []
        self._long: deque[_Call] = deque()
        self._long_count = 0  # tasks that serve these
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_flushing = False

    async def call(self, order: ScriptOrder, *, budget_s: float) -> list[Any]:
        """The script's reply without its echo. Raises what DESIGN calls *failed* (nothing happened) as
        StoreUnavailable, StoreFull or NotDurable, and *unknown* as OutcomeUnknown; takes at most `budget_s`."""
        echo = secrets.token_hex(8)
        loop = asyncio.get_running_loop()
        call = _Call(
            script=order.script,
            command=(
                b"EVALSHA",
                order.script.sha,
                *keys_of_call(order.base_key, self._is_cluster),
                echo,
                order.channels,
                *order.arguments,
            ),
            echo=echo.encode(),
            done=loop.create_future(),
        )
        if order.is_long:
            self._long.append(call)
            if self._long_count < _MOST_LONG:
                self._long_count += 1
                self._spawn(self._serve_long())
        else:
            self._pending.append(call)
            if not self._is_flushing:
                self._is_flushing = True
                loop.call_soon(self._flush)
        timer = loop.call_later(budget_s, call.time_is_up)  # a fifth of what asyncio.timeout costs
        try:
            return await call.done
        finally:
            timer.cancel()

    def _flush(self) -> None:
        self._is_flushing = False
        calls, self._pending = self._pending, []
        for start in range(0, len(calls), _MOST_IN_A_PIPELINE):
            self._spawn(self._run(calls[start : start + _MOST_IN_A_PIPELINE]))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_long(self) -> None:
        """The next follows in the very turn in which an answer has come."""
        try:
            while self._long:
                await self._run([self._long.popleft()])
        finally:
            self._long_count -= 1

    async def _run(self, calls: list[_Call]) -> None:
        async with self._places:
            waited_for = [call for call in calls if not call.done.done()]
            if not waited_for:
                return
            generation = self._pool.generation
            try:
                connection = await self._take()
            except (redis_errors.RedisError, OSError, TimeoutError) as error:
                for call in waited_for:
                    call.fail(trouble.unreachable(error))
                self._doubt()
                return
            # Whoever gave up meanwhile was told that nothing happened: keep it so.
            waited_for = [call for call in waited_for if not call.done.done()]
            is_sound = not waited_for
            try:
                if waited_for:
                    is_sound = await self._exchange(connection, waited_for)
            finally:
                if is_sound and generation == self._pool.generation:
                    self._pool.idle.append(connection)
                else:
                    await self._drop(connection)

    async def _take(self) -> AbstractConnection:
        while self._pool.idle:
            connection = self._pool.idle.pop()
            with contextlib.suppress(*_NETWORK_ERRORS):
                if await is_fit(connection):
                    return connection
            await self._drop(connection)
        connection = await self._source.open()
        # From here on the link bounds waits, by one timer for a whole exchange. Redis-py's own bounds, a task for what
        # is sent and a timer for each reply, cost as much as all the rest of a call.
        connection.socket_timeout = None
        return connection

    @staticmethod
    async def _drop(connection: AbstractConnection) -> None:
        with contextlib.suppress(*_NETWORK_ERRORS, redis_errors.RedisError):
            await connection.disconnect(nowait=True)

    def drop_connections(self) -> None:
        """Forgets every connection: they may lead to a server that is no longer the right one."""
        self._pool.generation += 1
        idle, self._pool.idle = self._pool.idle, []
        for connection in idle:
            self._spawn(self._drop(connection))

    async def _exchange(self, connection: AbstractConnection, calls: list[_Call]) -> bool:
        """Sends all and reads all. True if the connection can be used again."""
        unknown = await self._send_and_read(connection, calls, [call.command for call in calls])
        if unknown is None:
            return False
        if not unknown:
            return True
        commands = [(b"EVAL", call.script.text, *call.command[2:]) for call in unknown]
        return await self._send_and_read(connection, unknown, commands) == []

    async def _send_and_read(
        self, connection: AbstractConnection, calls: list[_Call], commands: Sequence[tuple[Argument, ...]]
    ) -> list[_Call] | None:
        """The calls whose script the store does not know (they did nothing); None if the connection is spoilt."""
        for call in calls:
            call.is_sent = True
        waits = self._min_replicas > 0 and any(call.is_write for call in calls)
        unknown: list[_Call] = []
        replies: list[tuple[_Call, list[Any]]] = []
        clock, patience_s = asyncio.get_running_loop().time, self._call_timeout_s
        try:
            async with asyncio.timeout(patience_s) as patience:
                await send(connection, [*commands, self._wait] if waits else commands)
                for call in calls:
                    patience.reschedule(clock() + patience_s)
                    reply, is_known, is_sound = await self._read_one(connection, call, holds=waits)
                    if not is_known:
                        unknown.append(call)
                    if not is_sound:
                        raise redis_errors.ConnectionError("replies have slipped")
                    if waits and reply is not None:
                        replies.append((call, reply))
                if waits:
                    patience.reschedule(clock() + patience_s)
                    self._answer(replies, has_replicas=await self._read_wait(connection))
        except _NETWORK_ERRORS as error:
            was_silent = isinstance(error, (redis_errors.TimeoutError, TimeoutError))
            for call in unknown:
                call.fail(trouble.unreachable(error))
            for call in calls:  # those that were answered are done
                call.fail(trouble.lost(was_silent=was_silent, is_write=call.is_write))
            self._doubt()
            return None
        return unknown

    async def _read_one(
        self, connection: AbstractConnection, call: _Call, *, holds: bool
    ) -> tuple[list[Any] | None, bool, bool]:
        """What the script replied, which its caller is told at once unless it `holds` it; whether the store knew the
        script; and whether the connection is sound."""
        try:
            # redis-py hangs up on LOADING, though the replies to the other calls of the pipeline are on their way.
            reply = await connection.read_response(disconnect_on_error=False)
        except redis_errors.NoScriptError:
            return None, False, True
        except (redis_errors.ResponseError, redis_errors.BusyLoadingError, redis_errors.AuthenticationError) as error:
            if trouble.word_of(error) == "READONLY":
                self.drop_connections()  # this one, too, once the other replies are read
                self._doubt()
            call.fail(trouble.refused(error))
            return None, True, True
        if not isinstance(reply, list) or not reply or reply[0] != call.echo:
            self.drop_connections()
            call.fail(OutcomeUnknown("the store's answer was another call's", metadata={"cause": "SLIPPED"}))
            return None, True, False
        if not holds and not call.done.done():
            call.done.set_result(reply[1:])
        return reply[1:], True, True

    async def _read_wait(self, connection: AbstractConnection) -> bool:
        try:
            reply = await connection.read_response(disconnect_on_error=False)
        except redis_errors.ResponseError as error:
            log.error("replicas.not_asked", error=trouble.word_of(error))  # noqa: TRY400 - a trace says nothing more
            return False
        return isinstance(reply, int) and reply >= self._min_replicas

    @staticmethod
    def _answer(replies: list[tuple[_Call, list[Any]]], *, has_replicas: bool) -> None:
        for call, reply in replies:
            if call.is_write and not has_replicas:
                call.fail(OutcomeUnknown("it was done, and too few replicas have it", metadata={"cause": "REPLICAS"}))
            elif not call.done.done():
                call.done.set_result(reply)

    def _doubt(self) -> None:
        if self._on_doubt is not None:
            self._on_doubt()

    async def command(self, *command: Argument) -> Any:
        """One plain command that only reads. Raises StoreUnavailable."""
        try:
            async with self._places:
                generation = self._pool.generation
                connection = await self._take()
                is_sound = False
                try:
                    async with asyncio.timeout(self._call_timeout_s):
                        reply = await ask(connection, *command)
                    is_sound = generation == self._pool.generation
                finally:
                    if is_sound:
                        self._pool.idle.append(connection)
                    else:
                        await self._drop(connection)
                return reply
        except redis_errors.ResponseError as error:
            raise trouble.refused(error) from error
        except (redis_errors.RedisError, OSError, TimeoutError) as error:
            raise trouble.unreachable(error) from error

    async def close(self) -> None:
        """Waits for calls under way, then drops all connections."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=self._call_timeout_s)
        for task in set(self._tasks):
            task.cancel()
        for connection in self._pool.idle:
            await self._drop(connection)
        self._pool.idle.clear()
