"""The driver of RabbitMQ by aio-pika, on a channel that is none."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bench.peers.tally import Tally, payload
from unit.bench.tasks import task

COUNT, BATCH = 250, 100
TASK = task("rabbitmq", count=COUNT, options={"queue_type": "classic"}, batch=BATCH)


class Message:
    """One that was delivered."""

    def __init__(self, number: int, acked: list[int], all_acked: asyncio.Event) -> None:
        self.body, self._number = payload(number, TASK.size), number
        self._acked, self._all_acked = acked, all_acked

    async def ack(self, *, multiple: bool) -> None:
        """Acknowledges this one and all before it."""
        assert multiple
        self._acked.append(self._number + 1)
        if self._number + 1 == COUNT:
            self._all_acked.set()


class Queue:
    """One in which all messages wait already."""

    def __init__(self) -> None:
        self.acked: list[int] = []
        self.all_acked = asyncio.Event()

    async def consume(self, callback: Callable[[Message], Awaitable[None]]) -> None:
        """Delivers them at once."""
        for number in range(COUNT):
            await callback(Message(number, self.acked, self.all_acked))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The driver, for which the library need not be there."""
    monkeypatch.setitem(sys.modules, "aio_pika", ModuleType("aio_pika"))
    return importlib.import_module("bench.peers.drivers.rabbitmq")


async def test_messages_that_are_there_cost_a_timer_for_each_batch_and_not_one_each(
    driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, queue, tally = driver.Client(TASK), Queue(), Tally.made(tmp_path / "tally", COUNT)
    client._queue = queue
    timers: list[float] = []
    loop = asyncio.get_running_loop()
    call_at = loop.call_at

    def counted(when: float, *call: Any, **options: Any) -> asyncio.TimerHandle:
        timers.append(when)
        return call_at(when, *call, **options)

    taking = asyncio.create_task(client.take(tally))
    with monkeypatch.context() as watched:
        watched.setattr(loop, "call_at", counted)
        await queue.all_acked.wait()
    taking.cancel()
    assert queue.acked == [100, 200, 250]
    assert tally.fault() == ""
    assert len(timers) == 3
