"""Handlers that run until they are told to end."""

from __future__ import annotations

import asyncio

import grpc


class Holding(grpc.GenericRpcHandler):
    """Takes every call, counts those that run, and answers nothing before `release` is set."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.running = 0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        """The same for all."""
        return grpc.unary_unary_rpc_method_handler(self._hold)

    async def _hold(self, _request: bytes, _context: object) -> bytes:
        self.running += 1
        await self.release.wait()
        self.running -= 1
        return b""

    async def runs(self, count: int) -> None:
        """Waits until so many run."""
        async with asyncio.timeout(10):
            while self.running < count:  # noqa: ASYNC110 - nothing signals it to the outside
                await asyncio.sleep(0.001)
