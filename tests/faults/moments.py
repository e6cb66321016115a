"""Moments at which a test may strike and know what it strikes."""

from __future__ import annotations

import grpc

from harness import StoreServer, error_of, eventually
from wire.calls import UNAVAILABLE, Line


async def at_rest(store: StoreServer) -> None:
    """Returns when nobody asks the store any more: those who wait have looked and sleep."""
    seen: list[int] = []

    def is_quiet() -> bool:
        with store.client() as client:
            stats = client.info("commandstats")
        seen.append(sum(int(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in ("evalsha", "exists")))
        return len(seen) > 5 and len(set(seen[-5:])) == 1

    await eventually(is_quiet)


async def written(store: StoreServer) -> None:
    """Returns when the store has given all it knows to the system, so that it may be killed.

    With `appendfsync everysec` a store that waits for a slow disk holds back up to 2 s of what it has answered.
    """

    def is_written() -> bool:
        with store.client() as client:
            return int(client.info("persistence")["aof_buffer_length"]) == 0

    await eventually(is_written)


async def works(line: Line) -> bool:
    """Whether a Put goes through: the trouble is over."""
    try:
        await line.put(b"works")
    except grpc.aio.AioRpcError as error:
        assert error.code() is UNAVAILABLE, error_of(error)
        return False
    return True
