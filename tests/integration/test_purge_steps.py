"""Purge, step by step: what it removes is of the queue that it began in, and bounded by what was there then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from headwayd.domain.errors import QueueDeleted
from headwayd.domain.model import Purged
from headwayd.engine.ports import RoleStep
from integration.desk import BUDGET_S, Desk

A_STEP = 1_000


async def purge(desk: Desk) -> Purged | RoleStep:
    return await desk.store.purge(desk.name, with_dead=True, budget_s=BUDGET_S)


def after_the_first_step(desk: Desk, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], Awaitable[object]]) -> None:
    """Something happens between the first step of a purge and the second."""
    ask, steps = desk.store._ask, 0

    async def watched(script: str, *arguments: object, **named: object) -> object:
        nonlocal steps
        answer = await ask(script, *arguments, **named)  # type: ignore[arg-type]
        if script == "purge":
            steps += 1
            if steps == 1:
                await happens()
        return answer

    monkeypatch.setattr(desk.store, "_ask", watched)


@pytest.mark.parametrize("is_made_anew", [True, False])
async def test_a_purge_goes_no_further_in_the_next_queue(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, is_made_anew: bool
) -> None:
    await desk.create()
    for _ in range(2):
        await desk.put_many([b"x"] * A_STEP)

    async def another() -> None:
        await desk.store.delete(desk.name, budget_s=BUDGET_S)
        if is_made_anew:
            await desk.create()
            await desk.put(b"new")

    after_the_first_step(desk, monkeypatch, another)
    with pytest.raises(QueueDeleted) as said:
        await purge(desk)
    assert said.value.metadata == {"queue": desk.name}
    if not is_made_anew:
        await desk.create()
        return
    counts = await desk.counts()
    assert (counts.length, counts.withdrawn) == (1, 0)
    assert await desk.is_sound()


async def test_a_purge_ends_though_more_and_more_is_put(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    await desk.create()
    await desk.put(b"x", b"y")
    after_the_first_step(desk, monkeypatch, lambda: desk.put(b"z"))
    assert await purge(desk) == Purged(waiting=2, delayed=0, dead=0)
    assert (await desk.counts()).length == 1


async def test_nobody_has_to_give_back_a_role_for_what_does_not_wait(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"later", delay_ms=60_000)
    desk.raw.rpop(desk.key("consumer_free"))  # as by a foreign consumer, for as long as nothing waits
    assert await purge(desk) == Purged(waiting=0, delayed=1, dead=0)
    desk.raw.lpush(desk.key("consumer_free"), 0)
    assert await desk.is_sound()


async def test_a_queue_that_nobody_knew_is_purged_in_steps(desk: Desk) -> None:
    await desk.create()
    desk.raw.lpush(desk.key("q"), *[b"foreign"] * (A_STEP + 1))
    desk.raw.delete(desk.key("meta"))  # as a foreign client makes one
    assert await purge(desk) == Purged(waiting=A_STEP + 1, delayed=0, dead=0)
