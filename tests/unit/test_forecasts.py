"""Forecasts keep looking at a queue that was asked about, and no longer than somebody asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, cast

import pytest

from harness import eventually
from headwayd.domain.errors import QueueDeleted, QueueNotFound, ShuttingDown
from headwayd.domain.model import Counts, Policy, Queue, Role
from headwayd.domain.watching import Eta, ToldQueue
from headwayd.engine import forecasts
from headwayd.engine.forecasts import Forecasts
from headwayd.engine.watching.estimates import Estimates


def queue_named(name: str, length: int = 3, *, generation: str = "g") -> Queue:
    return Queue(
        name=name,
        policy=Policy(),
        is_closed=False,
        is_paused=False,
        counts=Counts(length=length),
        created_at_ms=1,
        generation=generation,
        producer=Role(),
        consumer=Role(),
        at_ms=7,
    )


class Knowing:
    """An estimator that tells which position it was asked for."""

    def observe(self, numbers: Any) -> None: ...

    def estimate(self, position: int) -> Eta | None:
        return Eta(position, position)

    def estimate_slot(self, position: int) -> Eta | None: ...


class Parts:
    """The store and the watching that forecasts use, and what was done with them."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.fails: Exception | None = None
        self.generation = "g"
        self.answers = asyncio.Event()  # to those who watch
        self.answers.set()
        self.tasks: set[asyncio.Task[None]] = set()

    async def describe(self, name: str, *, budget_s: float) -> Queue:
        if name == "nothing":
            raise QueueNotFound("no such queue")
        return queue_named(name, generation=self.generation)

    async def queue(self, name: str, interval_s: float, *, budget_s: float) -> AsyncGenerator[ToldQueue, None]:
        self.begun.append(name)
        try:
            await self.answers.wait()
            yield ToldQueue(queue_named(name, generation=self.generation), 1)
            if self.fails is not None:
                raise self.fails
            await asyncio.Event().wait()
        finally:
            self.ended.append(name)

    def spawn(self, work: Awaitable[None], name: str) -> None:
        task = asyncio.ensure_future(cast(Any, work))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


@pytest.fixture
def parts() -> Parts:
    return Parts()


@pytest.fixture
def asked(parts: Parts) -> Forecasts:
    estimates = Estimates(Knowing)
    return Forecasts(cast(Any, parts), cast(Any, parts), estimates, parts.spawn)


async def is_known(asked: Forecasts) -> bool:
    told = await asked.of("jobs", budget_s=1)
    assert told.eta in (None, Eta(4, 4))
    assert told.at_ms == 7
    return told.eta is not None


async def test_the_wait_is_that_of_a_message_put_now(asked: Forecasts, parts: Parts) -> None:
    await eventually(lambda: is_known(asked))
    for task in parts.tasks:
        task.cancel()


async def test_what_was_learned_before_anybody_asked_is_no_basis(asked: Forecasts, parts: Parts) -> None:
    parts.answers.clear()
    for _ in range(2):
        assert not await is_known(asked)
        await eventually(lambda: parts.begun == ["jobs"])
    parts.answers.set()
    await eventually(lambda: is_known(asked))
    for task in parts.tasks:
        task.cancel()


async def test_what_was_learned_of_another_queue_of_the_name_is_no_basis(asked: Forecasts, parts: Parts) -> None:
    await eventually(lambda: is_known(asked))
    parts.generation = "another"
    assert not await is_known(asked)
    for task in parts.tasks:
        task.cancel()


async def test_what_was_learned_while_it_was_watched_is_no_basis_when_it_is_watched_anew(
    asked: Forecasts, parts: Parts
) -> None:
    await eventually(lambda: is_known(asked))
    for task in tuple(parts.tasks):
        task.cancel()
    await eventually(lambda: not parts.tasks)
    parts.answers.clear()
    assert not await is_known(asked)
    for task in parts.tasks:
        task.cancel()


async def test_a_queue_is_watched_once_however_often_it_is_asked_about(asked: Forecasts, parts: Parts) -> None:
    for name in ("jobs", "mails", "jobs", "jobs"):
        await asked.of(name, budget_s=1)
    await eventually(lambda: sorted(parts.begun) == ["jobs", "mails"])
    for task in tuple(parts.tasks):
        task.cancel()


async def test_a_queue_that_is_not_there_is_not_watched(asked: Forecasts, parts: Parts) -> None:
    with pytest.raises(QueueNotFound):
        await asked.of("nothing", budget_s=1)
    assert not parts.tasks


async def test_watching_ends_when_nobody_asks_any_more(
    asked: Forecasts, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecasts, "WATCHED_FOR_S", 0.02)
    await asked.of("jobs", budget_s=1)
    await eventually(lambda: not parts.tasks)
    assert parts.begun == parts.ended
    await asked.of("jobs", budget_s=1)
    await eventually(lambda: len(parts.begun) == 2)
    await eventually(lambda: not parts.tasks)


@pytest.mark.parametrize(
    "error", [QueueDeleted.of("jobs"), ShuttingDown("going down")], ids=lambda error: error.reason.name
)
async def test_a_watch_that_fails_begins_anew_with_the_next_question(
    asked: Forecasts, parts: Parts, error: Exception
) -> None:
    parts.fails = error
    await asked.of("jobs", budget_s=1)
    await eventually(lambda: not parts.tasks)
    parts.fails = None
    await asked.of("jobs", budget_s=1)
    await eventually(lambda: len(parts.begun) == 2)
    for task in tuple(parts.tasks):
        task.cancel()


async def test_no_more_queues_are_watched_than_estimators_are_kept(
    asked: Forecasts, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecasts, "_MOST_WATCHED", 2)
    for name in ("a", "b", "c"):
        await asked.of(name, budget_s=1)
    assert len(parts.tasks) == 2
    for task in tuple(parts.tasks):
        task.cancel()
