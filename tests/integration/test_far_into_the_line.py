"""What is far from both ends of a long line is dealt with in steps, none of which goes far into the list too often."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from harness import StoreServer
from headwayd.domain.errors import OutcomeUnknown, QueueDeleted, Reason, StoreUnavailable
from headwayd.domain.model import DelayOrder, OnDuplicate, PutCode, PutOutcome
from headwayd.engine.ports import Wait
from integration.desk import BUDGET_S, HOUR_MS, Desk, desk_at, queue_of

LENGTH = 1_000
MOST_PASSED = 2_000  # elements, in place of nodes
MOST_WAYS = MOST_PASSED // (LENGTH // 4)  # of a step to what stands between the first and the last quarter
OTHER_LOOKS = 2  # of a step into lists, as for when something was put
# Between the first and the last quarter, and none beside another.
FAR = [f"id-{n}" for n in range(LENGTH // 4 + 1, LENGTH * 3 // 4, 10)]
SIDE_BY_SIDE = [f"id-{n}" for n in range(400, 500)]


@pytest.fixture
async def far(store_server: StoreServer, request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    """A line that counts as long."""
    reach = f"local NEAR = 10\nlocal MOST_MOVED = 2000\nlocal MOST_PASSED, NODE_BYTES = {MOST_PASSED}, 1\n"
    async with desk_at(store_server, queue_of(request), reach=reach) as desk:
        await desk.create(dedupe_window_ms=HOUR_MS, remember_ms=HOUR_MS)
        for start in range(0, LENGTH, 500):
            names = [f"id-{n}" for n in range(start, start + 500)]
            await desk.put(*(name.encode() for name in names), ids=names)
        yield desk


@pytest.fixture
def looks(far: Desk, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often each step has looked into lists since."""
    ask, counted = far.store._ask, list[int]()

    def count() -> int:
        stats = far.raw.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("lindex", "lrange", "lset"))

    async def watched(script: str, *arguments: Any, **named: Any) -> list[Any]:
        before = count()
        answer = await ask(script, *arguments, **named)
        counted.append(count() - before)
        return answer

    monkeypatch.setattr(far.store, "_ask", watched)
    return counted


Between = Callable[[Callable[[], Awaitable[object]]], None]


@pytest.fixture
def between(far: Desk, monkeypatch: pytest.MonkeyPatch) -> Between:
    """Has something happen behind the first step of a call."""

    def happen(act: Callable[[], Awaitable[object]]) -> None:
        ask, steps = far.store._ask, 0

        async def watched(script: str, *arguments: Any, **named: Any) -> list[Any]:
            nonlocal steps
            steps += 1
            if steps == 2:
                monkeypatch.setattr(far.store, "_ask", ask)
                await act()
            return await ask(script, *arguments, **named)

        monkeypatch.setattr(far.store, "_ask", watched)

    return happen


def are_small(looks: list[int]) -> bool:
    """Asserts that there were several steps, none of which went far too often."""
    assert len(looks) > len(FAR) // MOST_WAYS
    assert max(looks) <= MOST_WAYS + OTHER_LOOKS
    return True


async def put_again(desk: Desk, names: list[str], on_duplicate: OnDuplicate, **options: Any) -> list[PutOutcome]:
    """The same ids with their payloads, but for the last, which has another."""
    payloads = [name.encode() for name in names[:-1]] + [b"other"]
    return list((await desk.put(*payloads, ids=names, on_duplicate=on_duplicate, **options)).outcomes)


async def test_what_is_withdrawn(far: Desk, looks: list[int]) -> None:
    assert await far.withdraw(*FAR, "nobody's") == [""] * len(FAR) + ["MESSAGE_NOT_FOUND"]
    assert are_small(looks)
    assert (await far.counts()).length == LENGTH - len(FAR)
    assert await far.is_sound()
    assert await far.withdraw(*FAR) == ["WITHDRAWN"] * len(FAR)


async def test_what_stands_side_by_side_is_read_together(far: Desk, looks: list[int]) -> None:
    assert await far.withdraw(*SIDE_BY_SIDE) == [""] * len(SIDE_BY_SIDE)
    assert looks == [1]
    [kept] = await put_again(far, SIDE_BY_SIDE[:1], OnDuplicate.KEEP)
    assert (kept.code, kept.body_differs) == (PutCode.KEPT, True)  # it was that one's element which was read
    assert await far.is_sound()


async def test_what_expires(far: Desk, looks: list[int]) -> None:
    for name in FAR:
        far.raw.zadd(far.key("expiry"), {str(int(name[3:]) + 1): far.now_ms + 1})
    await far.put(b"last", time_to_live_ms=1)  # so it is looked then
    looks.clear()
    far.at(1)
    while await far.store.sweep(far.name, budget_s=BUDGET_S):
        pass
    assert are_small(looks)
    counts = await far.counts()
    assert (counts.length, counts.expired) == (LENGTH - len(FAR), len(FAR) + 1)
    assert await far.is_sound()


async def test_what_is_postponed(far: Desk, looks: list[int]) -> None:
    order = DelayOrder(queue=far.name, leases=(), message_ids=[*FAR, "nobody's"], delay_ms=HOUR_MS)
    settled = await far.store.delay(order, budget_s=BUDGET_S)
    assert are_small(looks)
    assert [one.id for one in settled] == [*FAR, "nobody's"]
    assert [one.settled.name for one in settled] == ["DELAYED"] * len(FAR) + ["GONE"]
    counts = await far.counts()
    assert (counts.length, counts.delayed) == (LENGTH - len(FAR), len(FAR))
    assert await far.is_sound()


@pytest.mark.parametrize("waiter", ["", "headway/exact/1/0#1"], ids=["alone", "may wait"])
@pytest.mark.parametrize("mode", [OnDuplicate.KEEP, OnDuplicate.REPLACE])
async def test_what_is_put_again(far: Desk, looks: list[int], mode: OnDuplicate, waiter: str) -> None:
    outcomes = await put_again(far, FAR, mode, waiter=waiter)
    assert are_small(looks)
    code = PutCode.KEPT if mode is OnDuplicate.KEEP else PutCode.REPLACED
    assert [(one.id, one.code, one.position) for one in outcomes] == [(name, code, int(name[3:]) + 1) for name in FAR]
    assert [one.id for one in outcomes if one.body_differs] == (FAR[-1:] if mode is OnDuplicate.KEEP else [])
    assert not far.raw.exists(far.key("producers"))
    assert await far.is_sound()


async def test_what_is_put_again_all_or_nothing_is_one_step(far: Desk, looks: list[int]) -> None:
    outcomes = await put_again(far, FAR, OnDuplicate.REPLACE, all_or_nothing=True)
    assert {one.code for one in outcomes} == {PutCode.REPLACED}
    assert len(looks) == 1


# -- what happens between two steps ------------------------------------------------------------------------------------


async def made_anew(desk: Desk) -> None:
    await desk.store.delete(desk.name, budget_s=BUDGET_S)
    await desk.create()
    await desk.put(*(name.encode() for name in FAR), ids=FAR)


async def silent() -> None:
    raise StoreUnavailable("nobody answers", metadata={"cause": "SILENT"})


async def test_a_queue_that_is_made_anew_meanwhile_is_let_alone(far: Desk, between: Between) -> None:
    between(lambda: made_anew(far))
    with pytest.raises(QueueDeleted):
        await far.withdraw(*FAR)
    assert (await far.counts()).length == len(FAR)


async def test_nothing_of_a_queue_that_is_made_anew_meanwhile_is_postponed(far: Desk, between: Between) -> None:
    between(lambda: made_anew(far))
    order = DelayOrder(queue=far.name, leases=(), message_ids=FAR, delay_ms=HOUR_MS)
    settled = [one.settled.name for one in await far.store.delay(order, budget_s=BUDGET_S)]
    assert set(settled[:MOST_WAYS]) == {"DELAYED", "GONE"}
    assert settled[MOST_WAYS:] == ["GONE"] * (len(FAR) - MOST_WAYS)
    assert (await far.counts()).length == len(FAR)


async def test_nothing_is_put_into_a_queue_that_is_made_anew_meanwhile(far: Desk, between: Between) -> None:
    between(lambda: made_anew(far))
    with pytest.raises(QueueDeleted):
        await put_again(far, FAR, OnDuplicate.REPLACE)
    assert (await far.counts()).length == len(FAR)


async def test_a_store_that_fails_meanwhile_leaves_it_unknown_what_was_done(far: Desk, between: Between) -> None:
    between(silent)
    with pytest.raises(OutcomeUnknown):
        await far.withdraw(*FAR)
    assert LENGTH - MOST_WAYS <= (await far.counts()).length < LENGTH
    between(silent)
    order = DelayOrder(queue=far.name, leases=(), message_ids=FAR[::-1], delay_ms=HOUR_MS)
    with pytest.raises(OutcomeUnknown):
        await far.store.delay(order, budget_s=BUDGET_S)


async def test_a_store_that_fails_at_the_first_step_has_done_nothing(
    far: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(*_: Any, **__: Any) -> None:
        await silent()

    monkeypatch.setattr(far.store, "_ask", ask)
    with pytest.raises(StoreUnavailable):
        await far.withdraw(*FAR)


@pytest.mark.parametrize("why", [Reason.STORE_UNAVAILABLE, Reason.QUEUE_CLOSED])
async def test_the_rest_of_a_put_is_answered_with_what_ended_it(far: Desk, between: Between, why: Reason) -> None:
    async def close() -> None:
        await far.store.close_queue(far.name, budget_s=BUDGET_S)

    between(silent if why is Reason.STORE_UNAVAILABLE else close)
    step = await far.put(*[b""] * len(FAR), ids=FAR, on_duplicate=OnDuplicate.KEEP)
    outcomes = step.outcomes
    assert step.wait is Wait.MORE  # whoever had a place in line may have it yet
    kept = [one for one in outcomes if one.code is PutCode.KEPT]
    assert 0 < len(kept) <= MOST_WAYS
    assert [one.id for one in outcomes] == FAR
    errors = [one.error for one in outcomes[len(kept) :]]
    assert {error and error.reason for error in errors} == {why}
