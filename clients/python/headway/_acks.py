"""The acks of a worker that nobody waits for."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from headway._lease import Lease
from headway._runner import say_too_late
from headway.core.errors import LeaseGone, LeaseStale
from headway.v1.message_pb2 import SettleResult


class Acks:
    """Acks messages beside the work on others. Most acks are answered on the stream, and need no task; the others are
    made by `ack`, which goes on trying, each in a task of its own."""

    def __init__(self, ack: Callable[[Lease, bytes], Coroutine[Any, Any, None]]) -> None:
        self._ack = ack
        self._under_way: dict[Lease, asyncio.Task[None] | None] = {}  # None: on the stream
        self._is_done = asyncio.Event()
        self._is_given_up = False

    def begin(self, lease: Lease, result: bytes) -> None:
        """Acks a message that was handled, with its result. Does not block."""
        self._under_way[lease] = None
        if result or not lease.ack_soon(self._answered):
            self._go_on(lease, result)

    async def all_done(self) -> None:
        """Returns when none is under way."""
        while self._under_way:
            self._is_done.clear()
            await self._is_done.wait()

    def give_up(self) -> None:
        """Makes no more of them: their leases are given back with their stream."""
        self._is_given_up = True
        for task in self._under_way.values():
            if task is not None:
                task.cancel()

    def _answered(self, lease: Lease, answer: SettleResult | None) -> None:
        if answer is None:
            self._go_on(lease, b"")
            return
        self._end(lease)
        try:
            lease.note_acked(answer)
        except (LeaseStale, LeaseGone) as error:
            say_too_late(lease, error)

    def _go_on(self, lease: Lease, result: bytes) -> None:
        if self._is_given_up:
            self._end(lease)
            return
        task = self._under_way[lease] = asyncio.create_task(self._ack(lease, result))
        task.add_done_callback(lambda _: self._end(lease))

    def _end(self, lease: Lease) -> None:
        del self._under_way[lease]
        if not self._under_way:
            self._is_done.set()
