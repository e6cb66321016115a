"""How many calls nobody has accepted yet, by gRPC's own books (channelz, its documented way to ask).

A server's book counts the calls that were begun and those that ended. What gRPC itself refused, because the line was
full, was begun there and never ends (seen with 1.85). The books of its connections know better: to them also a refused
call is a stream that ended. But each takes 0.2 ms to read. So the first is what is read, and the others correct it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

# The public way to ask for a connection's book cannot read a field that gRPC puts there (seen with 1.85), and to read a
# server's takes it nearly twice as long.
from grpc._cython import cygrpc  # type: ignore[attr-defined]
from grpc_channelz.v1 import channelz_pb2
from grpc_channelz.v1.channelz import ChannelzServicer

# So many connections are read in one turn of the event loop: a millisecond or two.
_AT_ONCE = 8


def server_ids() -> frozenset[int]:
    """The gRPC servers of this process, by the numbers that gRPC's own books give them. These tell nothing of their
    age: the new one is that which was not there before."""
    found: set[int] = set()
    while True:
        start = max(found, default=0) + 1
        page = ChannelzServicer.GetServers(channelz_pb2.GetServersRequest(start_server_id=start), None)
        found.update(int(server.ref.server_id) for server in page.server)
        if page.end or not page.server:
            return frozenset(found)


@dataclass(frozen=True, slots=True)
class Connection:
    """What a closer look saw of a connection."""

    begun: int  # calls, since it was counted anew, or since the connection came
    open: int  # calls that did not end, those that wait to be accepted among them


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen when the books of all connections were read; since = since the look before."""

    begun: int  # calls, since
    refused: int  # of them those that gRPC refused itself, since
    connections: tuple[Connection, ...]


class Books:
    """Those of gRPC servers. `server_ids` tells which ones at a time, `running_count` how many of their calls run."""

    def __init__(self, server_ids: Callable[[], Iterable[int]], running_count: Callable[[], int]) -> None:
        self._server_ids = server_ids
        self._running_count = running_count
        self._never_ended: dict[int, int] = {}  # by server
        self._begun: dict[int, int] = {}  # calls that each server, and each connection, had begun at the last look
        self._known: Set[int] = frozenset()  # those that were there at the look before that one, too
        self._counted_from: dict[int, int] = {}  # as `_begun`, when it was counted anew
        self._correcting: asyncio.Task[None] | None = None
        self._on_corrected: list[Callable[[float], None]] = []
        self.last_look = Look(0, 0, ())

    def pending_count(self) -> int:
        """How many calls nobody has accepted yet: never too few, but too many where gRPC has refused some since the
        last correction. Takes some 0.1 ms for each server, and 35 µs more for each connection."""
        open_count = sum(
            _open_count(_calls(server), "calls") - self._never_ended.get(server, 0) for server in self._server_ids()
        )
        return open_count - self._running_count()

    def count_anew(self) -> None:
        """Of what connections begin the next looks count only what they begin from the last one on, and of those that
        the last one saw first, all. Between two that follow each other soon gRPC may not have read some of them."""
        self._counted_from = {one: count for one, count in self._begun.items() if one in self._known}

    def correct(self, done: Callable[[float], None]) -> None:
        """Begins to read the books of all connections, and calls `done` behind that with the seconds of the processor
        that it took; who asks meanwhile hears of the same. `last_look` is what was seen then."""
        self._on_corrected.append(done)
        if self._correcting is None:
            self._correcting = asyncio.create_task(self._correct(), name="correct books")

    async def _correct(self) -> None:
        took_s = 0.0
        try:
            took_s = await self._look()
        finally:
            self._correcting = None
            waiting, self._on_corrected = self._on_corrected, []
            for done in waiting:
                done(took_s)

    async def _look(self) -> float:
        took_s, began = 0.0, time.thread_time()
        never_ended: dict[int, int] = {}
        begun: dict[int, int] = {}
        connections: list[Connection] = []
        for server_id in self._server_ids():
            # Before its connections: what is refused meanwhile is left to the next time, and nobody who waits is
            # forgotten.
            server = _calls(server_id)
            begun[server_id] = int(server.get("callsStarted", 0))
            open_count = 0
            for connection in _connections(server_id):
                book = _streams(connection)
                begun[connection] = int(book.get("streamsStarted", 0))
                one = Connection(
                    begun[connection] - self._counted_from.get(connection, 0), _open_count(book, "streams")
                )
                connections.append(one)
                open_count += one.open
                if len(connections) % _AT_ONCE == 0:
                    took_s += time.thread_time() - began
                    await asyncio.sleep(0)
                    began = time.thread_time()
            never_ended[server_id] = max(_open_count(server, "calls") - open_count, 0)
        self.last_look = Look(
            begun=sum(begun[one] - self._begun.get(one, 0) for one in never_ended),
            refused=sum(max(count - self._never_ended.get(one, 0), 0) for one, count in never_ended.items()),
            connections=tuple(connections),
        )
        self._known = self._begun.keys()
        self._never_ended, self._begun = never_ended, begun
        return took_s + time.thread_time() - began


def _connections(server_id: int) -> Iterator[int]:
    start = 0
    while True:
        try:
            page = json.loads(cygrpc.channelz_get_server_sockets(server_id, start, 0))
        except ValueError:  # the server has gone meanwhile
            return
        ids = [int(one["socketId"]) for one in page.get("socketRef", ())]
        yield from ids
        if page.get("end") or not ids:
            return
        start = ids[-1] + 1


def _calls(server_id: int) -> Mapping[str, str]:
    """What the book of the server counts; nothing if it has gone."""
    return _data(cygrpc.channelz_get_server, server_id, "server")


def _streams(connection: int) -> Mapping[str, str]:
    """The same of a connection. A call ends there whoever ends it."""
    return _data(cygrpc.channelz_get_socket, connection, "socket")


def _data(read: Callable[[int], bytes], number: int, kind: str) -> Mapping[str, str]:
    try:
        book: Mapping[str, str] = json.loads(read(number))[kind]["data"]
    except ValueError:
        return {}
    return book


def _open_count(book: Mapping[str, str], kind: str) -> int:
    """How many of this kind were begun and did not end. A book does not name what is 0."""
    started, *ended = (int(book.get(f"{kind}{what}", 0)) for what in ("Started", "Succeeded", "Failed"))
    return started - sum(ended)
