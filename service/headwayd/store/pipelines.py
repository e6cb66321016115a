"""What goes out to the store as one piece, and who hears of what comes back: calls of scripts, or one plain command."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from redis import exceptions as redis_errors

from headwayd.domain.errors import HeadwayError, OutcomeUnknown, StoreUnavailable
from headwayd.store import trouble
from headwayd.store.gates import Gate, Transaction
from headwayd.store.packing import Argument, Command, Run, pack
from headwayd.store.scripts import Script
from headwayd.store.wire import Wire

# The scripts that the store lets write nothing.
READ_ONLY = frozenset({"describe", "peek", "list_leased", "list_dead", "count_dead", "find_absent", "weigh", "check"})


@dataclass(slots=True, eq=False)
class Call:
    """One call of a script, and whoever waits for its reply. `echo` is what that begins with."""

    script: Script
    command: tuple[Argument | Run, ...]
    echo: bytes
    done: asyncio.Future[list[Any]]
    gate: Gate | None = None
    is_sent: bool = False

    @property
    def is_write(self) -> bool:
        """Whether it may have changed something when its reply is lost."""
        return self.script.name not in READ_ONLY

    def fail(self, error: HeadwayError) -> None:
        """Tells that, if nothing has been told."""
        if not self.done.done():
            self.done.set_exception(error)

    def time_is_up(self) -> None:
        """Nothing happened if it was not sent; else nobody knows."""
        if self.is_sent:
            self.fail(trouble.lost(was_silent=True, is_write=self.is_write))
        else:
            self.fail(StoreUnavailable("the store did not answer in time", metadata={"cause": "SILENT"}))


class Pipeline(Protocol):
    """What goes out as one piece, on a connection of its own. How it ends is told, whatever happens."""

    is_long: bool

    def is_wanted(self) -> bool:
        """Whether anybody still waits for it. Those who do not are left out."""

    def begin(self, wire: Wire) -> None:
        """Asks."""

    def unreachable(self, error: Exception) -> None:
        """There is no connection: nothing happened."""


class Owner(Protocol):
    """Whose connections they go out on."""

    wait_command: tuple[Argument, ...] | None

    def is_enough(self, replicas: Any) -> bool:
        """Whether so many replicas have what was written, by the reply to `wait_command`."""

    def drop_connections(self) -> None:
        """They may lead to a server that is no longer the right one."""

    def doubt(self) -> None:
        """The server may not be the right one any more."""

    def may_write(self) -> bool:
        """Whether it is known that the server keeps what was asked for."""

    def ended(self, pipeline: Pipeline, wire: Wire) -> None:
        """The connection is free."""


class Scripts:
    """Calls of scripts. Those whose script the store does not know, which did nothing, are made once more; so are those
    that found their gate shut, as ordinary ones."""

    def __init__(self, link: Owner, calls: list[Call], *, is_long: bool) -> None:
        self.is_long = is_long
        self._link = link
        self._calls = calls
        self._wire: Wire | None = None
        self._at = 0  # of the calls: whose reply is next
        self._unknown: list[Call] = []
        self._transaction: Transaction | None = None  # of the next call
        self._waits = False
        self._held: list[tuple[Call, list[Any]]] = []  # until replicas have it

    def is_wanted(self) -> bool:
        """See Pipeline."""
        if not self._link.may_write():
            for call in self._calls:
                if call.is_write:
                    call.fail(trouble.Unlooked())
        self._calls = [call for call in self._calls if not call.done.done()]
        return bool(self._calls)

    def begin(self, wire: Wire) -> None:
        """See Pipeline."""
        self._wire = wire
        for call in self._calls:
            call.is_sent = True
        if len(self._calls) == 1 and (gate := self._calls[0].gate) is not None and wire.transacts:
            self._transaction = Transaction(gate, self._calls[0].command)
            self._send(self._transaction.commands)
        else:
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
        if self._transaction is not None:
            reply = self._transaction.take(reply)
            if reply is None:
                return True
            if self._transaction.is_undone:
                self._at += 1
                return True
            self._transaction = None
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
        if error is None and self._transaction is not None:
            self._wire.transacts &= not self._transaction.is_forbidden
            self._transaction, self._at, self._held = None, 0, []
            self._send([call.command for call in self._calls])
            return
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
        """See Pipeline."""
        for call in self._calls:
            call.fail(trouble.unreachable(error))
        self._link.doubt()


class Question:
    """Plain commands that only read. `done` has their replies, of which each may be an error."""

    is_long = False

    def __init__(self, link: Owner, commands: Sequence[Command]) -> None:
        self._link = link
        self._commands = commands
        self._wire: Wire | None = None
        self._replies: list[Any] = []
        self.done: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    def is_wanted(self) -> bool:
        """See Pipeline."""
        return not self.done.done()

    def begin(self, wire: Wire) -> None:
        """See Pipeline."""
        self._wire = wire
        wire.ask([*chain.from_iterable(map(pack, self._commands))], len(self._commands), self)

    def take(self, reply: Any) -> bool:
        """The next reply."""
        self._replies.append(reply)
        return True

    def end(self, error: Exception | None) -> None:
        """It has its replies, or no more will come."""
        assert self._wire is not None
        if error is not None:
            self.unreachable(error)
        elif not self.done.done():
            self.done.set_result(self._replies)
        self._link.ended(self, self._wire)

    def unreachable(self, error: Exception) -> None:
        """See Pipeline."""
        if not self.done.done():
            self.done.set_exception(error)
