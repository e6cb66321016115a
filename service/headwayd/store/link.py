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
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, Protocol

import structlog
from redis import exceptions as redis_errors

from headwayd.domain.errors import HeadwayError, OutcomeUnknown, StoreUnavailable
from headwayd.store import trouble
from headwayd.store.connections import ConnectionSource
from headwayd.store.keys import keys_of_call
from headwayd.store.packing import Argument, Command, Run, pack
from headwayd.store.scripts import Script
from headwayd.store.wire import Wire

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
    arguments: Command
    is_long: bool


@dataclass(slots=True, eq=False)
class _Call:
    script: Script
    command: tuple[Argument | Run, ...]
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


class _Pipeline(Protocol):
    """What goes out as one piece, on a connection of its own. How it ends is told, whatever happens."""

    is_long: bool

    def is_wanted(self) -> bool:
        """Whether anybody still waits for it. Those who do not are left out."""

    def begin(self, wire: Wire) -> None:
        """Asks."""

    def unreachable(self, error: Exception) -> None:
        """There is no connection: nothing happened."""


class _Scripts:
    """Calls of scripts. Those whose script the store does not know, which did nothing, are made once more."""

    def __init__(self, link: Link, calls: list[_Call], *, is_long: bool) -> None:
        self.is_long = is_long
        self._link = link
        self._calls = calls
        self._wire: Wire | None = None
        self._at = 0  # of the calls: whose reply is next
        self._unknown: list[_Call] = []
        self._waits = False
        self._held: list[tuple[_Call, list[Any]]] = []  # until replicas have it

    def is_wanted(self) -> bool:
        """See _Pipeline."""
        self._calls = [call for call in self._calls if not call.done.done()]
        return bool(self._calls)

    def begin(self, wire: Wire) -> None:
        """See _Pipeline."""
        self._wire = wire
        for call in self._calls:
            call.is_sent = True
        self._send([call.command for call in self._calls])

    def _send(self, commands: Sequence[Command]) -> None:
        assert self._wire is not None
        wait = self._link.wait_command
        self._waits = wait is not None and any(call.is_write for call in self._calls)
        all_commands = [*commands, wait] if self._waits and wait is not None else commands
        self._wire.ask([*chain.from_iterable(map(pack, all_commands))], len(all_commands), self)

    def take(self, reply: Any) -> bool:
        """The reply to the next call, which is told at once, unless replicas are waited for; at the end theirs."""
        if self._at == len(self._calls):
            self._answer(has_replicas=self._link.is_enough(reply))
            return True
        call = self._calls[self._at]
        self._at += 1
        if isinstance(reply, redis_errors.NoScriptError):
            self._unknown.append(call)
        elif isinstance(reply, Exception):
            if trouble.word_of(reply) == "READONLY":
                self._link.drop_connections()  # this one, too, once the other replies are read
                self._link.doubt()
            call.fail(trouble.refused(reply))
        elif not isinstance(reply, list) or not reply or reply[0] != call.echo:
            self._link.drop_connections()
            call.fail(OutcomeUnknown("the store's answer was another call's", metadata={"cause": "SLIPPED"}))
            return False
        elif self._waits:
            self._held.append((call, reply[1:]))
        elif not call.done.done():
            call.done.set_result(reply[1:])
        return True

    def _answer(self, *, has_replicas: bool) -> None:
        for call, reply in self._held:
            if call.is_write and not has_replicas:
                call.fail(OutcomeUnknown("it was done, and too few replicas have it", metadata={"cause": "REPLICAS"}))
            elif not call.done.done():
                call.done.set_result(reply)
        self._held = []

    def end(self, error: Exception | None) -> None:
        """All have their replies, or none will come any more."""
        assert self._wire is not None
        if error is None and self._unknown:
            self._calls, self._unknown, self._at = self._unknown, [], 0
            self._send([(b"EVAL", call.script.text, *call.command[2:]) for call in self._calls])
            return
        if error is not None:
            was_silent = isinstance(error, TimeoutError)
            for call in self._unknown:
                call.fail(trouble.unreachable(error))
            for call in self._calls:  # those that were answered are done
                call.fail(trouble.lost(was_silent=was_silent, is_write=call.is_write))
            self._link.doubt()
        self._link.ended(self, self._wire)

    def unreachable(self, error: Exception) -> None:
        """See _Pipeline."""
        for call in self._calls:
            call.fail(trouble.unreachable(error))
        self._link.doubt()


class _Question:
    """One plain command that only reads."""

    is_long = False

    def __init__(self, link: Link, command: tuple[Argument, ...]) -> None:
        self._link = link
        self._command = command
        self._wire: Wire | None = None
        self.done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def is_wanted(self) -> bool:
        """See _Pipeline."""
        return not self.done.done()

    def begin(self, wire: Wire) -> None:
        """See _Pipeline."""
        self._wire = wire
        wire.ask(pack(self._command), 1, self)

    def take(self, reply: Any) -> bool:
        """The reply."""
        if not self.done.done():
            if isinstance(reply, Exception):
                self.done.set_exception(reply)
            else:
                self.done.set_result(reply)
        return True

    def end(self, error: Exception | None) -> None:
        """It has its reply, or none will come any more."""
        assert self._wire is not None
        if error is not None:
            self.unreachable(error)
        self._link.ended(self, self._wire)

    def unreachable(self, error: Exception) -> None:
        """See _Pipeline."""
        if not self.done.done():
            self.done.set_exception(error)


class Link:
    """Calls scripts. Owns its connections.

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
        wait_ms = int(call_timeout_s * 1000 * _SHARE_OF_REPLICAS)
        self.wait_command = (b"WAIT", min_replicas, wait_ms) if min_replicas else None
        self._on_doubt = on_doubt
        self._is_cluster = is_cluster
        self._idle: list[Wire] = []
        self._busy: set[Wire] = set()
        self._generation = 0  # of the connections that may be used
        self._places = _MOST_CONNECTIONS
        self._placeless: deque[_Pipeline] = deque()
        self._pending: list[_Call] = []
        self._long: deque[_Call] = deque()
        self._long_count = 0  # on their way
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_flushing = False
        self._rest = asyncio.Event()  # nothing is under way
        self._rest.set()

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
                self._next_long()
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
            self._start(_Scripts(self, calls[start : start + _MOST_IN_A_PIPELINE], is_long=False))

    def _next_long(self) -> None:
        """In the place of one that has ended, in the very turn in which its answer has come."""
        while self._long:
            call = self._long.popleft()
            if not call.done.done():
                self._start(_Scripts(self, [call], is_long=True))
                return
        self._long_count -= 1

    # -- connections --------------------------------------------------------------------------------------------------

    def _start(self, pipeline: _Pipeline) -> None:
        """At once, if a connection is free; else as soon as one is."""
        if not self._places:
            self._placeless.append(pipeline)
            return
        self._places -= 1
        self._rest.clear()
        while self._idle:
            wire = self._idle.pop()
            if wire.is_fit:
                self._begin(pipeline, wire)
                return
            wire.close()
        task = asyncio.get_running_loop().create_task(self._begin_on_another(pipeline))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begin_on_another(self, pipeline: _Pipeline) -> None:
        generation = self._generation
        try:
            connection = await self._source.open()
        except (redis_errors.RedisError, OSError, TimeoutError) as error:
            pipeline.unreachable(error)
            self._end(pipeline)
        except asyncio.CancelledError:
            pipeline.unreachable(ConnectionAbortedError())
            self._end(pipeline)
            raise
        else:
            self._begin(pipeline, Wire(connection, patience_s=self._call_timeout_s, generation=generation))

    def _begin(self, pipeline: _Pipeline, wire: Wire) -> None:
        self._busy.add(wire)
        # Whoever gave up meanwhile was told that nothing happened: keep it so.
        if pipeline.is_wanted():
            pipeline.begin(wire)
        else:
            self.ended(pipeline, wire)

    def ended(self, pipeline: _Pipeline, wire: Wire) -> None:
        """The connection is free."""
        self._busy.discard(wire)
        if wire.is_fit and wire.generation == self._generation:
            self._idle.append(wire)
        else:
            wire.close()
        self._end(pipeline)

    def _end(self, pipeline: _Pipeline) -> None:
        self._places += 1
        if pipeline.is_long:
            self._next_long()
        if self._placeless and self._places:
            self._start(self._placeless.popleft())
        if self._places == _MOST_CONNECTIONS:
            self._rest.set()

    def drop_connections(self) -> None:
        """Forgets every connection: they may lead to a server that is no longer the right one."""
        self._generation += 1
        idle, self._idle = self._idle, []
        for wire in idle:
            wire.close()

    def is_enough(self, replicas: Any) -> bool:
        """Whether so many replicas have what was written, by the reply to `wait_command`."""
        if isinstance(replicas, Exception):
            log.error("replicas.not_asked", error=trouble.word_of(replicas))
            return False
        return isinstance(replicas, int) and replicas >= self._min_replicas

    def doubt(self) -> None:
        """The server may not be the right one any more."""
        if self._on_doubt is not None:
            self._on_doubt()

    async def command(self, *command: Argument) -> Any:
        """One plain command that only reads. Raises StoreUnavailable."""
        question = _Question(self, command)
        self._start(question)
        try:
            return await question.done
        except redis_errors.ResponseError as error:
            raise trouble.refused(error) from error
        except (redis_errors.RedisError, OSError, TimeoutError) as error:
            raise trouble.unreachable(error) from error

    async def close(self) -> None:
        """Waits for calls under way, then drops all connections."""
        try:
            async with asyncio.timeout(self._call_timeout_s):
                await self._rest.wait()
        except TimeoutError:
            pass
        for task in set(self._tasks):
            task.cancel()
        for wire in (*self._idle, *self._busy):
            wire.close()
        self._idle.clear()
