"""What nobody attends any more is withdrawn from the queue that it was put into, and from no other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest

from headwayd.domain.errors import StoreUnavailable
from headwayd.domain.watching import ToldWaiting, WatchOrder
from headwayd.engine.tasks import Tasks
from headwayd.engine.watching.estimates import Estimates, NoEstimator
from headwayd.engine.watching.watching import Watching
from integration.desk import BUDGET_S, Desk


def without_an_answer(desk: Desk, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], Awaitable[object]]) -> None:
    """The first withdrawal does not reach the store, and something happens before the second."""
    ask, steps = desk.store._ask, 0

    async def watched(script: str, *arguments: object, **named: object) -> object:
        nonlocal steps
        if script == "withdraw":
            steps += 1
            if steps == 1:
                await happens()
                raise StoreUnavailable("gone", metadata={"cause": "REFUSED"})
        return await ask(script, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(desk.store, "_ask", watched)


async def leave(desk: Desk) -> None:
    """An attended watch begins and is over."""
    tasks = Tasks()
    watching = Watching(desk.store, tasks.spawn, Estimates(NoEstimator))
    order = WatchOrder(queue=desk.name, message_ids=("one", "two"), is_attended=True)
    async with aclosing(watching.messages(order, budget_s=BUDGET_S)) as told:
        assert isinstance(await anext(told), ToldWaiting)
    await tasks.drain(BUDGET_S)


async def test_what_was_put_into_the_next_queue_is_not_withdrawn(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    await desk.create()
    await desk.put(b"x", b"y", ids=["one", "two"])

    async def made_anew() -> None:
        await desk.store.delete(desk.name, budget_s=BUDGET_S)
        await desk.create()
        await desk.put(b"x", b"y", ids=["one", "two"])

    without_an_answer(desk, monkeypatch, made_anew)
    await leave(desk)
    assert (await desk.counts()).length == 2


async def test_what_is_still_in_its_queue_is_withdrawn_at_the_next_try(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.create()
    await desk.put(b"x", b"y", b"z", ids=["one", "two", "three"])

    async def nothing() -> None: ...

    without_an_answer(desk, monkeypatch, nothing)
    await leave(desk)
    counts = await desk.counts()
    assert (counts.length, counts.withdrawn) == (1, 2)
