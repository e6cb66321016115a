"""How many calls nobody has accepted yet, by gRPC's own books (channelz, its documented way to ask).

A server's book counts the calls that were begun and those that ended. What gRPC itself refused, because the line was
full, was begun there and never ends (seen with 1.85). The books of its connections know better: to them also a refused
call is a stream that ended. But each takes 0.2 ms to read. So the first is what is read, and the others correct it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

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


class Books:
    """Those of these gRPC servers. `running_count` tells how many of their calls run."""

    def __init__(self, server_ids: Iterable[int], running_count: Callable[[], int]) -> None:
        self._servers = list(server_ids)
        self._running_count = running_count
        self._never_ended = 0
        self._correcting: asyncio.Task[None] | None = None

    def pending_count(self) -> int:
        """How many calls nobody has accepted yet: never too few, but too many where gRPC has refused some since the
        last correction. Takes some 0.1 ms for each server, and 35 µs more for each connection."""
        return self._begun_count() - self._never_ended - self._running_count()

    def _begun_count(self) -> int:
        """Calls that were begun, less those that ended."""
        books = (json.loads(cygrpc.channelz_get_server(server_id))["server"]["data"] for server_id in self._servers)
        return sum(_open_count(book, "calls") for book in books)

    def correct(self, done: Callable[[float], None]) -> None:
        """Begins to read the books of all connections, and calls `done` behind that with how long it took, in s. Must
        not be called again before."""
        self._correcting = asyncio.create_task(self._correct(done), name="correct books")

    async def _correct(self, done: Callable[[float], None]) -> None:
        took_s, began = 0.0, time.perf_counter()
        try:
            # Before the others: what is refused meanwhile is left to the next time, and nobody who waits is forgotten.
            begun = self._begun_count()
            open_count = 0
            for at, connection in enumerate(self._connections(), 1):
                open_count += _open_streams(connection)
                if at % _AT_ONCE == 0:
                    took_s += time.perf_counter() - began
                    await asyncio.sleep(0)
                    began = time.perf_counter()
            self._never_ended = max(begun - open_count, 0)
        finally:
            done(took_s + time.perf_counter() - began)

    def _connections(self) -> Iterator[int]:
        for server_id in self._servers:
            start = 0
            while True:
                request = channelz_pb2.GetServerSocketsRequest(server_id=server_id, start_socket_id=start)
                page = ChannelzServicer.GetServerSockets(request, None)
                ids = [int(one.socket_id) for one in page.socket_ref]
                yield from ids
                if page.end or not ids:
                    break
                start = ids[-1] + 1


def _open_streams(connection: int) -> int:
    """Calls of the connection that did not end, whoever would have ended them."""
    try:
        book = json.loads(cygrpc.channelz_get_socket(connection))
    except ValueError:  # it has gone meanwhile
        return 0
    return _open_count(book["socket"]["data"], "streams")


def _open_count(book: Mapping[str, str], kind: str) -> int:
    """How many of this kind were begun and did not end. A book does not name what is 0."""
    started, *ended = (int(book.get(f"{kind}{what}", 0)) for what in ("Started", "Succeeded", "Failed"))
    return started - sum(ended)
