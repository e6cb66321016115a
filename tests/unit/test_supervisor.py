"""When workers are said to serve. How real ones come and go is told by tests/integration/test_workers.py."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from harness import eventually
from headwayd import supervisor
from headwayd.config.settings import Settings
from headwayd.supervisor import Supervisor
from headwayd.worker import Orders

LINE = b"serving on here\n"
WITHIN_S = 20.0


class Process:
    """One of a worker. It serves and ends when the test says so."""

    pid = 1

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.number = 0  # of the worker whose it is
        self.serves: asyncio.Future[bytes] = loop.create_future()
        self.ends: asyncio.Future[int] = loop.create_future()
        self.stdin = SimpleNamespace(write=self._read_orders)
        self.stdout = SimpleNamespace(readline=lambda: asyncio.shield(self.serves))

    def _read_orders(self, packed: bytes) -> None:
        orders: Orders = pickle.loads(packed[4:])
        self.number = orders.number

    def wait(self) -> asyncio.Future[int]:
        return asyncio.shield(self.ends)

    def send_signal(self, _number: object) -> None:
        if not self.ends.done():
            self.ends.set_result(0)


class Workers:
    """A supervisor of two, what it announced, and the processes that it started."""

    def __init__(self) -> None:
        self.announced: list[str] = []
        self.started: list[Process] = []
        self.supervisor = Supervisor(Settings.load({"workers": 2}), announce=self.announced.append)

    async def start_child(self, *_: object, **__: object) -> Any:
        self.started.append(Process())
        return self.started[-1]

    async def next_of(self, number: int, *, before: Process | None = None) -> Process:
        """The process that fills the worker's place, behind the one before."""

        def found() -> Process | None:
            those = [one for one in self.started if one.number == number]
            return those[-1] if those and those[-1] is not before else None

        process = await eventually(found, within=WITHIN_S)
        assert process is not None
        return process


@pytest.fixture
async def workers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Workers]:
    made = Workers()
    monkeypatch.setattr(supervisor, "start_child", made.start_child)
    supervising = asyncio.create_task(made.supervisor._supervise(made.supervisor._settings, "unix://nowhere"))
    yield made
    made.supervisor._told.set()
    for process in made.started:
        process.send_signal(None)
    async with asyncio.timeout(WITHIN_S):
        await supervising


async def test_a_worker_that_serves_twice_does_not_speak_for_one_that_does_not_serve_yet(workers: Workers) -> None:
    first, other = await workers.next_of(1), await workers.next_of(2)
    first.serves.set_result(LINE)
    first.ends.set_result(-9)
    again = await workers.next_of(1, before=first)
    again.serves.set_result(LINE)
    again.ends.set_result(-9)
    await workers.next_of(1, before=again)  # so what the one before said has been heard
    assert workers.announced == []
    other.serves.set_result(LINE)
    assert await eventually(lambda: workers.announced, within=WITHIN_S) == ["serving on here"]


async def test_that_all_serve_is_said_once(workers: Workers) -> None:
    processes = [await workers.next_of(number) for number in (1, 2)]
    for process in processes:
        process.serves.set_result(LINE)
    await eventually(lambda: workers.announced, within=WITHIN_S)
    processes[0].ends.set_result(-9)
    again = await workers.next_of(1, before=processes[0])
    again.serves.set_result(LINE)
    again.ends.set_result(-9)
    await workers.next_of(1, before=again)
    assert workers.announced == ["serving on here"]
