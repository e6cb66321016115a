"""Several gRPC servers of one process, on the same addresses, which are one to everybody else.

One is enough, but for two reasons. Others can take the place of those that listen, with other bounds. And grpc.aio's,
by which the plain way serves, accepts one call in a turn of the event loop, however many wait, so that with several
more are begun. The kernel spreads connections over them (SO_REUSEPORT); what they serve is the same, and all bounds are
counted behind them but for two of gRPC's own, of which each has a share.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import grpc

from headwayd.domain.kept import kept
from headwayd.rpc.books import Books, server_ids
from headwayd.rpc.core.awaited import Awaited
from headwayd.rpc.core.completions import Completions
from headwayd.rpc.core.server import Server
from headwayd.rpc.listening import UNIX_SCHEME, bind, checked
from headwayd.rpc.plain import register_plainly
from headwayd.sockets import CannotListen, held

# The kernel spreads connections by chance. Over shares smaller than this one would be full long before all are.
_LEAST_SHARE = 250
# The most streams and calls of a connection at a time, in gRPC's words.
MAX_STREAMS = "grpc.max_concurrent_streams"
# That the line of one ends takes gRPC as much as 60 ms (2,500 calls): what came meanwhile has its turn.
_BETWEEN_STOPS_S = 0.25
_AS_LONG_AS_CALLS_RUN_S = 365.0 * 24 * 3600  # what is stopped without a grace cancels them


def acceptor_count(wanted: int, *, max_connections: int) -> int:
    """How many of those that are wanted make sense: only one where so few connections are allowed that a share of them
    would be full by chance, or where the kernel does not spread them."""
    if not _can_share():
        return 1
    return max(min(wanted, max_connections // _LEAST_SHARE), 1)


def _can_share() -> bool:
    """Whether the kernel spreads connections over those who listen on one address."""
    return platform.system() == "Linux"


def share_of(bound: int, count: int) -> int:
    """What each of so many acceptors is allowed, so that all together are allowed the whole."""
    return -(-bound // count)


@dataclass(slots=True, eq=False)
class _Servers:
    """Some of gRPC's, made together; `stopping`: they take no more calls, and have gone when that has ended."""

    all: list[grpc.aio.Server]
    ids: frozenset[int]
    stopping: asyncio.Task[None] | None = None


class Acceptors:
    """So many gRPC servers. `shares_addresses`: also with whoever holds them for several processes; they are held
    already. `awaited` knows the calls whose requests have not come, but for the plain way. All methods belong to one
    event loop; `start` comes once, after what is served."""

    def __init__(
        self,
        count: int,
        *,
        options: Sequence[tuple[str, int]],
        shares_addresses: bool,
        is_plain: bool = False,
        awaited: Awaited | None = None,
    ) -> None:
        self._count = count
        self._shares_addresses = shares_addresses
        # Off, a second process on the same port is told so.
        self._reuses_port = shares_addresses or _can_share()
        self._options = [*options, ("grpc.so_reuseport", int(self._reuses_port))]
        self._serve: list[Callable[[grpc.aio.Server], None]] = []
        self._bound: tuple[str, ...] = ()
        self._credentials: Callable[[], grpc.ServerCredentials] | None = None
        self._is_stopped = False
        self._completions = None if is_plain else Completions()
        self._awaited = awaited or Awaited()
        self._servers = self._make(None)
        self._old: list[_Servers] = []

    def _make(self, max_streams: int | None) -> _Servers:
        options = self._options
        if max_streams is not None:
            options = [*(one for one in options if one[0] != MAX_STREAMS), (MAX_STREAMS, max_streams)]
        others = server_ids()
        made: list[grpc.aio.Server] = [
            grpc.aio.server(options=options)
            if self._completions is None
            else Server(self._completions, options, self._awaited)
            for _ in range(self._count)
        ]
        for serve in self._serve:
            for server in made:
                serve(server)
        return _Servers(made, server_ids() - others)

    def serve(
        self,
        handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]],
        router: grpc.GenericRpcHandler,
        *,
        lanes: Iterable[tuple[str, str]],
    ) -> None:
        """Calls are taken by `router`, but for those of `lanes` (service, method), which do not stand behind all
        others until they are accepted."""
        lanes = tuple(lanes)

        def serve(server: grpc.aio.Server) -> None:
            for service, method in lanes:
                server.add_registered_method_handlers(service, {method: handlers[f"/{service}/{method}"]})
            server.add_generic_rpc_handlers((router,))
            if isinstance(server, Server):
                server.read_early(path for path, handler in handlers.items() if handler.unary_unary)

        self._serve_by(serve)

    def serve_plainly(self, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]], *, max_request_bytes: int) -> None:
        """Calls are taken as generated code takes them."""
        self._serve_by(lambda server: register_plainly(server, handlers, max_request_bytes=max_request_bytes))

    def _serve_by(self, serve: Callable[[grpc.aio.Server], None]) -> None:
        self._serve.append(serve)
        for server in self._servers.all:
            serve(server)

    def books(self, running_count: Callable[[], int]) -> Books:
        """They tell how many calls nobody has accepted yet. `running_count` tells how many run."""

        def ids() -> list[int]:
            return [one for servers in (self._servers, *self._old) for one in servers.ids]

        return Books(ids, running_count)

    async def start(self, listen: Sequence[str], credentials: Callable[[], grpc.ServerCredentials] | None) -> list[str]:
        """Begins to listen; the addresses with their real ports. Raises CannotListen, and then nothing is open.

        Each port gets `credentials` of its own: gRPC takes those that follow files for one only. A socket of this
        machine cannot be shared: one of the servers listens there.
        """
        self._credentials = credentials
        first, *others = self._servers.all
        try:
            with ExitStack() as stack:
                addresses = [checked(address) for address in listen]
                if self._reuses_port and not self._shares_addresses:
                    theirs = [address for address in addresses if not address.startswith(UNIX_SCHEME)]
                    real = iter(stack.enter_context(held(theirs)))
                    addresses = [one if one.startswith(UNIX_SCHEME) else next(real) for one in addresses]
                bound = await self._bind(first, addresses)
                shared = [address for address in bound if not address.startswith(UNIX_SCHEME)]
                for server in others:
                    await self._bind(server, shared)
                for server in self._servers.all:
                    await server.start()
        except BaseException:
            await self.stop(None)
            raise
        self._bound = tuple(bound)  # what is given back is the caller's
        return bound

    async def _bind(self, server: grpc.aio.Server, addresses: Iterable[str]) -> list[str]:
        credentials = self._credentials
        return [await bind(server, address, credentials() if credentials else None) for address in addresses]

    @property
    def can_be_renewed(self) -> bool:
        """Whether others can listen beside these: not where an address cannot be shared."""
        return self._reuses_port and not any(address.startswith(UNIX_SCHEME) for address in self._bound)

    async def renew(self, max_streams: int | None) -> None:
        """Puts others into the place of these, whose connections may have so many streams and calls at a time; None =
        as many as at first.

        Clients are told (GOAWAY) to open new connections for new calls; calls that run do so to their end. Calls that
        nobody has accepted yet are cancelled. Raises CannotListen, and then all is as it was. Must not be called where
        they cannot be renewed.
        """
        if self._is_stopped:
            raise CannotListen("this process is going down")
        made = self._make(max_streams)
        try:
            for server in made.all:
                await self._bind(server, self._bound)
                await server.start()
            if self._is_stopped:
                raise CannotListen("this process is going down")
        except BaseException:
            await _stop(made, None)
            raise
        old, self._servers = self._servers, made
        self._old.append(old)
        old.stopping = kept(self._see_off(old), "stop old acceptors")

    async def _see_off(self, old: _Servers) -> None:
        stops: list[asyncio.Task[None]] = []
        for server in old.all:
            stops.append(asyncio.create_task(server.stop(_AS_LONG_AS_CALLS_RUN_S)))
            await asyncio.sleep(_BETWEEN_STOPS_S)
        await asyncio.gather(*stops)
        self._old.remove(old)

    async def stop(self, grace_s: float | None) -> None:
        """Takes no more calls, and cancels those that still run after the grace. Idempotent."""
        self._is_stopped = True
        await asyncio.gather(*(_stop(servers, grace_s) for servers in (self._servers, *self._old)))
        if self._completions is not None:
            self._completions.close()


async def _stop(servers: _Servers, grace_s: float | None) -> None:
    await asyncio.gather(*(server.stop(grace_s) for server in servers.all))
