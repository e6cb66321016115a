"""An empty service, the ceiling of what grpc.aio can do on one process: one generic handler that gives back the
bytes it was given, on uvloop. Prints its address and serves until it is killed. `python -m bench.echo 4`: by so many
servers of grpc.aio on that address, as Headway's acceptors are.
"""

from __future__ import annotations

import sys
from typing import Any

import grpc.aio
import uvloop


class _Echo(grpc.GenericRpcHandler):
    """Answers every method."""

    def __init__(self) -> None:
        self._handler: Any = grpc.unary_unary_rpc_method_handler(self._echo)

    @staticmethod
    async def _echo(request: bytes, _context: object) -> bytes:
        return request

    def service(self, _details: object) -> Any:
        return self._handler


async def serve(acceptors: int) -> None:
    """Until killed."""
    servers, port = [grpc.aio.server() for _ in range(acceptors)], 0
    for server in servers:
        server.add_generic_rpc_handlers((_Echo(),))
        port = server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await servers[0].wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
