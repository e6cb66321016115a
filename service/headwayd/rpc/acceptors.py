"""Several gRPC servers of one process, on the same addresses, which are one to everybody else.

A server of grpc.aio accepts one call after another: it asks gRPC for the next one when the last has come through gRPC's
thread, a socket and the event loop. So however many calls wait, each turn of the loop begins one, and when gRPC's
threads are busy it begins as many as they have turns. Of several servers each accepts one call a turn, and a line of
waiting calls is that of some connections, not of all. The kernel spreads connections over them (SO_REUSEPORT); what
they serve is the same, and all bounds are counted behind them but for two of gRPC's own, of which each has a share.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import grpc

from headwayd.rpc.books import Books, server_ids
from headwayd.rpc.listening import UNIX_SCHEME, bind, checked
from headwayd.rpc.plain import register_plainly
from headwayd.rpc.sharing import held

# The kernel spreads connections by chance. Over shares smaller than this one would be full long before all are.
_LEAST_SHARE = 250


def acceptor_count(wanted: int, *, max_connections: int) -> int:
    """How many of those that are wanted make sense: only one where so few connections are allowed that a share of them
    would be full by chance, or where the kernel does not spread them."""
    if platform.system() != "Linux":
        return 1
    return max(min(wanted, max_connections // _LEAST_SHARE), 1)


def share_of(bound: int, count: int) -> int:
    """What each of so many acceptors is allowed, so that all together are allowed the whole."""
    return -(-bound // count)


class Acceptors:
    """So many gRPC servers. `shares_addresses`: also with whoever holds them for several processes; they are held
    already. All methods belong to one event loop; `start` comes once, after what is served."""

    def __init__(self, count: int, *, options: Sequence[tuple[str, int]], shares_addresses: bool) -> None:
        self._is_alone = count == 1
        self._shares_addresses = shares_addresses
        # Off, a second process on the same port is told so.
        reuse_port = ("grpc.so_reuseport", int(shares_addresses or not self._is_alone))
        others = server_ids()
        self._servers = [grpc.aio.server(options=[*options, reuse_port]) for _ in range(count)]
        self._ids = server_ids() - others

    def serve(
        self,
        handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]],
        router: grpc.GenericRpcHandler,
        *,
        lanes: Iterable[tuple[str, str]],
    ) -> None:
        """Calls are taken by `router`, but for those of `lanes` (service, method), which do not stand behind all
        others until they are accepted."""
        for server in self._servers:
            for service, method in lanes:
                server.add_registered_method_handlers(service, {method: handlers[f"/{service}/{method}"]})
            server.add_generic_rpc_handlers((router,))

    def serve_plainly(self, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]) -> None:
        """Calls are taken as generated code takes them."""
        for server in self._servers:
            register_plainly(server, handlers)

    def books(self, running_count: Callable[[], int]) -> Books:
        """They tell how many calls nobody has accepted yet. `running_count` tells how many run."""
        return Books(self._ids, running_count)

    async def start(self, listen: Sequence[str], credentials: Callable[[], grpc.ServerCredentials] | None) -> list[str]:
        """Begins to listen; the addresses with their real ports. Raises CannotListen, and then nothing is open.

        Each port gets `credentials` of its own: gRPC takes those that follow files for one only. A socket of this
        machine cannot be shared: one of the servers listens there.
        """

        async def bound_to(server: grpc.aio.Server, address: str) -> str:
            return await bind(server, address, credentials() if credentials else None)

        try:
            with ExitStack() as stack:
                addresses = [checked(address) for address in listen]
                if not self._is_alone and not self._shares_addresses:
                    addresses = [
                        address if address.startswith(UNIX_SCHEME) else stack.enter_context(held([address]))[0]
                        for address in addresses
                    ]
                first, *others = self._servers
                bound = [await bound_to(first, address) for address in addresses]
                for server in others:
                    for address in bound:
                        if not address.startswith(UNIX_SCHEME):
                            await bound_to(server, address)
                for server in self._servers:
                    await server.start()
        except BaseException:
            await self.stop(None)
            raise
        return bound

    async def stop(self, grace_s: float | None) -> None:
        """Takes no more calls, and cancels those that still run after the grace. Idempotent."""
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers))
