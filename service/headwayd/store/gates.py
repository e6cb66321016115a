"""Puts of many messages whose payloads do not come through a script.

Whatever a script is given becomes a string of Lua's, and a value of the store's again when it is put: more than half of
what the store spends on a Put of many. So these are put by one plain command between two calls of `put`, and the three
are a transaction, of which nobody sees a part. The first call looks whether so many may join the line at once, with
nothing else to be done there, and if so gives the line another name, the gate's; LPUSHX puts the payloads there if the
gate is open, else nowhere; the second call gives the line its own name again and books what has joined. So whatever
goes wrong with the first, an unknown script for example, nothing is put, and the call is made as an ordinary one, on
the same connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, cast

from redis import exceptions as redis_errors
from redis.asyncio.connection import AbstractConnection

from headwayd.domain.bare import BareMessages, payload_bytes
from headwayd.domain.model import NewMessage
from headwayd.store import frames
from headwayd.store.connections import send
from headwayd.store.keys import OWN
from headwayd.store.packing import Argument, Command, Run
from headwayd.store.status import Status

# From here on two calls of the script, and the commands around them, cost the store less than one with the payloads, by
# a tenth or more: a message costs the script as much as so many bytes.
_WORTH_BYTES, _BYTES_OF_A_MESSAGE = 80_000, 300
# Where a gate was shut (the queue is full, for example) the next calls are ordinary ones for so long.
_SHUT_S = 1.0
_MOST_SHUT = 1_000  # queues


@dataclass(slots=True, eq=False)
class Gate:
    """How the messages of one call of `put` may go through it."""

    asks: tuple[Argument, ...]  # what the script is told first
    run: Run  # the payloads
    tells: tuple[Argument, ...]  # what it is told then
    is_shut: bool = False  # as it was found


class Gates:
    """Those of all queues."""

    def __init__(self) -> None:
        self._shut_until: dict[str, float] = {}  # on the loop's clock

    def of(self, queue: str, messages: Sequence[NewMessage], run: Run, *heading: Argument) -> Gate | None:
        """For messages that are put by `run` behind `heading`; None if it is not worth it, or one looks like a
        frame."""
        count = len(messages)
        if type(messages) is not BareMessages:
            return None
        size = payload_bytes(messages)
        if size + _BYTES_OF_A_MESSAGE * count < _WORTH_BYTES or self._is_shut(queue):
            return None
        if True in map(bytes.startswith, messages.payloads, repeat(frames.MAGIC)):
            return None
        return Gate((*heading, f"g{count}"), run, (*heading, f"j{count}", size))

    def remember(self, queue: str, gate: Gate) -> None:
        """How it was found."""
        if gate.is_shut:
            if len(self._shut_until) >= _MOST_SHUT:
                self._shut_until.clear()
            self._shut_until[queue] = asyncio.get_running_loop().time() + _SHUT_S

    def _is_shut(self, queue: str) -> bool:
        until = self._shut_until.get(queue)
        if until is None:
            return False
        if asyncio.get_running_loop().time() < until:
            return True
        del self._shut_until[queue]
        return False


class Transaction:
    """One call of a script by way of a gate. `command` is the ordinary call."""

    def __init__(self, gate: Gate, command: Command) -> None:
        self._gate = gate
        behind_keys = 3 + cast(int, command[2])
        base, echo = command[3], command[behind_keys]
        call = command[: behind_keys + 2]  # the script, its keys, echo and channels
        self._shut = [str(echo).encode(), Status.GATE_SHUT.encode()]
        self.commands: Sequence[Command] = (
            (b"MULTI",),
            (*call, *gate.asks),
            (b"LPUSHX", f"{base!s}{OWN['gate']}", gate.run),
            (*call, *gate.tells),
            (b"EXEC",),
        )
        self.is_undone = False  # nothing happened: it is to be called as it is
        self.is_forbidden = False  # nor would it ever
        self._left = len(self.commands)
        self._error: Exception | None = None  # the first of those that keep EXEC from doing anything

    def take(self, reply: Any) -> Any:
        """The next reply. At the end what the script said, None before."""
        self._left -= 1
        if self._left:
            if isinstance(reply, Exception) and self._error is None:
                self._error = reply
            return None
        if isinstance(reply, Exception) or not isinstance(reply, list) or len(reply) != len(self.commands) - 2:
            if isinstance(reply, redis_errors.ExecAbortError) and isinstance(
                self._error, redis_errors.NoPermissionError
            ):
                self.is_undone = self.is_forbidden = True
            return self._error or reply
        asked, _, told = reply
        if isinstance(told, redis_errors.NoScriptError):
            self.is_undone = True
        elif told == self._shut:
            self.is_undone = self._gate.is_shut = True
            self.is_forbidden = isinstance(asked, redis_errors.NoPermissionError)
        return told


async def may_transact(connection: AbstractConnection) -> bool:
    """Whether transactions are permitted on it: else the commands of one would be carried out by
    themselves. An EXEC that is refused ends its transaction, too."""
    probe = ((b"MULTI",), (b"EXEC",))
    await send(connection, probe)
    refused = 0
    for _ in probe:
        try:
            await connection.read_response()
        except redis_errors.ResponseError:
            refused += 1
    return not refused
