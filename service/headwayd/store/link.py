"""Sends scripts to the store: calls that arrive in one turn of the event loop go out as one pipeline, and so do those
that wait because no connection is free.

The store answers whatever it found on its connections at one look only when it has done all of that. So of the calls
that take it long only a few are on their way at a time, each by itself, and the others wait here: else the store would
do nothing while this process takes in the answers of all, and this process nothing until the store has done all of the
next. The further away it is the more are on their way, or it would do nothing while they are.

A call that is cancelled goes on (its script has probably run); whoever needs its late result keeps the task. A reply
must carry the echo of its call: if one does not, replies have slipped, and every connection is dropped. Where replicas
are to have what was written, a WAIT goes behind the scripts on the same connection, one for each pipeline, and nobody
is answered before it is.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import secrets
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import structlog
from redis import exceptions as redis_errors

from headwayd.store import trouble
from headwayd.store.clocks import ServerClock
from headwayd.store.connections import ConnectionSource, run_of
from headwayd.store.gates import Gate, may_transact
from headwayd.store.keys import keys_of_call
from headwayd.store.packing import Argument, Command
from headwayd.store.pipelines import Call, Pipeline, Question, Scripts
from headwayd.store.scripts import Script
from headwayd.store.wire import Wire

_MOST_CONNECTIONS = 16
_MOST_IN_A_PIPELINE = 200
# Of long calls: one that the store works on, and as many as it needs until the next one comes. That is one where it is
# near, and another one for each so much that the way there and back takes.
_LEAST_LONG, _MOST_LONG = 2, 12
_WAY_OF_ONE_S = 0.0005
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
    gate: Gate | None = None


class Link:
    """Calls scripts. Owns its connections.

    `min_replicas` have what was written before its caller is answered. `on_doubt` is told when the server may not be
    the right one any more: it refused to write, or an answer was lost. `may_write` is asked at the moment when a call
    that writes would go out, of this link; if it may not, that fails with Unlooked. `is_cluster`: the server is a node
    of one. `refusal`: why nothing is written to the server, None until it has said what it keeps (see `note`). `clock`
    is what is known of the server's.
    """

    def __init__(
        self,
        source: ConnectionSource,
        *,
        call_timeout_s: float,
        min_replicas: int = 0,
        on_doubt: Callable[[], None] | None = None,
        may_write: Callable[[Link], bool] = lambda _: True,
        is_cluster: bool = False,
    ) -> None:
        self.source = source
        self._call_timeout_s = call_timeout_s
        self._min_replicas = min_replicas
        wait_ms = int(call_timeout_s * 1000 * _SHARE_OF_REPLICAS)
        self.wait_command: tuple[Argument, ...] | None = (b"WAIT", min_replicas, wait_ms) if min_replicas else None
        self._on_doubt = on_doubt
        self._may_write = may_write
        self.refusal: str | None = None
        self.clock = ServerClock()
        self._run = ""  # which process of a server's has said so; "" where that does not matter
        self._is_cluster = is_cluster
        self._idle: list[Wire] = []
        self._busy: set[Wire] = set()
        self._generation = 0  # of the connections that may be used
        self._places = _MOST_CONNECTIONS
        self._placeless: deque[Pipeline] = deque()  # long calls and questions: few, and before all others
        self._pending: list[Call] = []
        self._long: deque[Call] = deque()
        self._long_count = 0  # on their way
        self._most_long = _LEAST_LONG
        self._way_s = math.inf  # to the server and back: the shortest time so far in which anything was answered
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_flushing = False
        self._is_closed = False
        self._rest = asyncio.Event()  # nothing is under way
        self._rest.set()

    async def call(self, order: ScriptOrder, *, budget_s: float) -> list[Any]:
        """The script's reply without its echo. Raises what DESIGN calls *failed* (nothing happened) as
        StoreUnavailable, StoreFull or NotDurable, and *unknown* as OutcomeUnknown; takes at most `budget_s`."""
        echo = secrets.token_hex(8)
        loop = asyncio.get_running_loop()
        call = Call(
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
            gate=order.gate,
        )
        if order.is_long:
            self._long.append(call)
            if self._long_count < self._most_long:
                self._long_count += 1
                self._next_long()
        else:
            self._pending.append(call)
            self._flush_soon()
        timer = loop.call_later(budget_s, call.time_is_up)  # a fifth of what asyncio.timeout costs
        try:
            return await call.done
        finally:
            timer.cancel()
            del call  # which knows its error, which knows this frame: see `forget_way` of domain/errors.py

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """All that have come, as far as connections are free; the others wait, and go together when one is."""
        self._is_flushing = False
        while self._pending and self._places:
            calls = self._pending[:_MOST_IN_A_PIPELINE]
            del self._pending[:_MOST_IN_A_PIPELINE]
            self._start(Scripts(self, calls, is_long=False))
        if self._pending:
            self._forget_late()

    def _forget_late(self) -> None:
        """Of those who wait, the first ones for whose answers nobody waits any more: else all that comes while the
        store is away would be kept."""
        late = itertools.takewhile(lambda call: call.done.done(), self._pending)
        del self._pending[: sum(1 for _ in late)]

    def _next_long(self) -> None:
        """In the place of one that has ended, in the very turn in which its answer has come."""
        while self._long and self._long_count <= self._most_long:
            call = self._long.popleft()
            if not call.done.done():
                self._start(Scripts(self, [call], is_long=True))
                return
        self._long_count -= 1

    # -- connections --------------------------------------------------------------------------------------------------

    def _start(self, pipeline: Pipeline) -> None:
        """At once, if a connection is free; else as soon as one is."""
        if not self._places:
            self._drop_unwanted()
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

    async def _begin_on_another(self, pipeline: Pipeline) -> None:
        generation = self._generation
        try:
            if self._is_closed:  # they waited until then
                raise ConnectionAbortedError
            connection = await self.source.open()
            transacts = await may_transact(connection)
            if self._run and (run := await run_of(connection)) != self._run:
                self._forget_server(run)
                generation = self._generation
        except (redis_errors.RedisError, OSError, TimeoutError) as error:
            pipeline.unreachable(error)
            self._end(pipeline)
        except BaseException:  # a defect, too, must not cost a place
            pipeline.unreachable(ConnectionAbortedError())
            self._end(pipeline)
            raise
        else:
            self._begin(
                pipeline, Wire(connection, patience_s=self._call_timeout_s, generation=generation, transacts=transacts)
            )

    def _begin(self, pipeline: Pipeline, wire: Wire) -> None:
        self._busy.add(wire)
        # Whoever gave up meanwhile was told that nothing happened: keep it so. And the connection may be the first to
        # another server, of which it is not known what it keeps.
        if pipeline.is_wanted():
            pipeline.begin(wire)
        else:
            self.ended(pipeline, wire)

    def ended(self, pipeline: Pipeline, wire: Wire) -> None:
        """The connection is free."""
        self._busy.discard(wire)
        if wire.generation == self._generation and wire.took_s < self._way_s:  # else it led to who was there before
            self._way_s = wire.took_s
            self._most_long = min(_LEAST_LONG + int(self._way_s / _WAY_OF_ONE_S), _MOST_LONG)
        if wire.is_fit and wire.generation == self._generation:
            self._idle.append(wire)
        else:
            wire.close()
        self._end(pipeline)

    def _end(self, pipeline: Pipeline) -> None:
        self._places += 1
        if pipeline.is_long:
            self._next_long()
        self._drop_unwanted()
        if self._placeless and self._places:
            self._start(self._placeless.popleft())
        if self._pending:
            self._forget_late()
        if self._pending:
            self._flush_soon()  # not now: after an outage each may end at once, deep within the end of the one before
        elif self._places == _MOST_CONNECTIONS:
            self._rest.set()

    def _drop_unwanted(self) -> None:
        """Forgets the first of those who wait for a connection, as far as nobody waits for them any more."""
        while self._placeless and not self._placeless[0].is_wanted():
            if self._placeless.popleft().is_long:
                self._next_long()

    def drop_connections(self) -> None:
        """Forgets every connection: they may lead to a server that is no longer the right one."""
        self._generation += 1
        self._way_s = math.inf  # it may be another one
        idle, self._idle = self._idle, []
        for wire in idle:
            wire.close()

    def note(self, refusal: str, *, run: str) -> None:
        """What the server said of itself, as this process of it: why nothing is written to it, or "". If another one is
        there by now, that is not its word. `run` "": whichever is there."""
        if self._run in ("", run):
            self._run, self.refusal = run, refusal

    def _forget_server(self, run: str) -> None:
        """The address leads to another process now, which has said nothing so far."""
        self._run, self.refusal = run, None
        self.drop_connections()

    def is_enough(self, replicas: Any) -> bool:
        """Whether so many replicas have what was written, by the reply to `wait_command`."""
        if isinstance(replicas, Exception):
            log.error("replicas.not_asked", error=trouble.word_of(replicas))
            return False
        return isinstance(replicas, int) and replicas >= self._min_replicas

    def may_write(self) -> bool:
        """Whether it is known that the server keeps what was asked for."""
        return self._may_write(self)

    def doubt(self) -> None:
        """The server may not be the right one any more."""
        if self._on_doubt is not None:
            self._on_doubt()

    async def command(self, *command: Argument) -> Any:
        """One plain command that only reads. Raises StoreUnavailable."""
        (reply,) = await self.commands(command)
        return trouble.checked(reply)

    async def commands(self, *commands: Command) -> list[Any]:
        """Several such, on one connection at once: their replies, of which each may be an error (`trouble.checked`).
        Raises StoreUnavailable."""
        question = Question(self, commands)
        self._start(question)
        try:
            return await question.done
        except (redis_errors.RedisError, OSError, TimeoutError) as error:
            raise trouble.told(error) from error

    async def close(self) -> None:
        """Waits for calls under way, then drops all connections."""
        try:
            async with asyncio.timeout(self._call_timeout_s):
                await self._rest.wait()
        except TimeoutError:
            pass
        self._is_closed = True
        for task in set(self._tasks):
            task.cancel()
        for wire in (*self._idle, *self._busy):
            wire.close()
        self._idle.clear()
