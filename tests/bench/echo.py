"""An empty service, the ceiling of what grpc.aio can do on one process: one generic handler that gives back the
bytes it was given, on uvloop. Prints its address and serves until it is killed. `python -m bench.echo 4`: by so many
servers of grpc.aio on that address, as acceptors are; `python -m bench.echo 4 own`: of Headway's own kind.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc.aio
import uvloop

from headwayd.rpc.core.completions import Completions
from headwayd.rpc.core.server import Server

CALLED = ("/echo/Echo", "/headway.v1.QueueService/Put")


class _Echo(grpc.GenericRpcHandler):
    """Answers every method."""

    def __init__(self) -> None:
        self._handler: Any = grpc.unary_unary_rpc_method_handler(self._echo)

    @staticmethod
    async def _echo(request: bytes, _context: object) -> bytes:
        return request

    def service(self, _details: object) -> Any:
        return self._handler


def _servers(acceptors: int, *, are_own: bool) -> list[grpc.aio.Server]:
    if not are_own:
        return [grpc.aio.server() for _ in range(acceptors)]
    completions = Completions()
    servers = [Server(completions) for _ in range(acceptors)]
    for server in servers:
        server.read_early(CALLED)
    return list(servers)


async def serve(acceptors: int, *, are_own: bool) -> None:
    """Until killed."""
    servers, port = _servers(acceptors, are_own=are_own), 0
    for server in servers:
        server.add_generic_rpc_handlers((_Echo(),))
        port = server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]) if len(sys.argv) > 1 else 1, are_own="own" in sys.argv[2:]))
