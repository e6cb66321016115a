"""A foreign client in a thread of its own: its calls block, ours must not."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import Future
from typing import Any

import redis

from harness import StoreServer, eventually
from interop.clients import QueueClass

_CALL_S = 10.0


class Foreign:
    """One stock client with one handle on one queue. Its connections bear its name, so the store can tell about it."""

    def __init__(self, client: QueueClass, server: StoreServer, prefix: str, queue: str, uid: str) -> None:
        self.uid = uid
        self._server = server
        self.errors = client
        self.queue = client(queue, prefix, uid, host="127.0.0.1", port=server.port)

    def start(self, operation: str, *args: object, **kwargs: object) -> asyncio.Future[Any]:
        """Begins an operation; it may block for ever."""
        result: Future[Any] = Future()

        def run() -> None:
            try:
                result.set_result(getattr(self.queue, operation)(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 -- whatever it is belongs to whoever awaits the result
                # A StopIteration cannot pass through a future.
                result.set_exception(RuntimeError("StopIteration") if isinstance(error, StopIteration) else error)

        threading.Thread(target=run, daemon=True, name=f"{self.uid} {operation}").start()
        return asyncio.wrap_future(result)

    async def call(self, operation: str, *args: object, **kwargs: object) -> Any:
        """Does an operation that is not expected to block for long."""
        async with asyncio.timeout(_CALL_S):
            return await self.start(operation, *args, **kwargs)

    async def block(self, operation: str, *args: object, **kwargs: object) -> asyncio.Future[Any]:
        """Begins an operation and returns once the store says that it blocks."""
        running = self.start(operation, *args, **kwargs)
        with self._server.client() as asking:
            await eventually(lambda: running.done() or self._is_blocked(asking))
        if running.done():
            raise AssertionError(f"{operation} did not block") from running.exception()
        return running

    def _is_blocked(self, asking: redis.Redis) -> bool:
        return any(
            "b" in str(connection["flags"]) for connection in asking.client_list() if connection["name"] == self.uid
        )

    def hang_up(self) -> None:
        """Cuts the connections; whatever blocks ends."""
        with contextlib.suppress(redis.RedisError, OSError):
            # What the client does to give its role back must fail, too: the queue is gone by now.
            self.queue._db.connection_pool.connection_kwargs["port"] = 1
            self.queue._db.connection_pool.disconnect()
