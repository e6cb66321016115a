"""Purge, step by step: what it removes is of the queue that it began in, and bounded by what was there then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from harness import StoreServer
from headwayd.domain.errors import QueueDeleted
from headwayd.domain.model import Purged
from headwayd.engine.ports import RoleStep
from integration.desk import BUDGET_S, FAR, Desk, desk_at, queue_of

A_STEP = 1_000
REACH = f"local NEAR = 40\nlocal MOST_MOVED = 20\n{FAR}"  # what is withdrawn stays in the list if it stands deeper


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


async def test_a_purge_goes_on_behind_a_long_run_of_withdrawn_messages(
    store_server: StoreServer, request: pytest.FixtureRequest
) -> None:
    async with desk_at(store_server, queue_of(request), reach=REACH) as desk:
        await desk.create()
        names = [f"id-{n}" for n in range(5 * A_STEP)]
        for start in range(0, len(names), A_STEP):
            part = names[start : start + A_STEP]
            await desk.put(*[b"x"] * len(part), ids=part)
        for start in range(100, len(names) - 100, 400):
            await desk.withdraw(*names[start : start + 400])
        assert int(desk.raw.zcard(desk.key("holes"))) > 4 * A_STEP  # more than three steps take
        assert (await desk.counts()).length == 200
        assert await purge(desk) == Purged(waiting=200, delayed=0, dead=0)
        assert (await desk.counts()).length == 0
        assert await desk.is_sound()
