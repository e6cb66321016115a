"""An empty service, the ceiling of what grpc.aio can do on one process: one generic handler that gives back the
bytes it was given, on uvloop. Prints its address and serves until it is killed.
"""

from __future__ import annotations

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


async def serve() -> None:
    """Until killed."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve())
