"""No step grows with how many stand in the consumer line of whom nobody is there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headwayd.domain.errors import PollTooSoon
from headwayd.domain.hints import poll_hints
from headwayd.domain.model import GetOrder, Policy
from headwayd.domain.standing import Waiter
from headwayd.engine.ports import GetStep, Wait
from headwayd.store import keys
from integration.desk import BUDGET_S, HOUR_MS, PREFIX, Desk

KEPT_NEAR, AT_ONCE = 1_000, 1_000  # as lua/include/consumers.lua has them
MANY = 4 * AT_ONCE
FIRST_PLACES = 10  # by the store's own steps
GRACE_MS = 600_000
# Of a step that passes over all places that are near: two for every 32 of them, in each of two walks; and what it does.
MOST_COMMANDS = 4 * (KEPT_NEAR // 32 + 1) + 100
HERE, HUNG, GONE = "headway/here/1", "headway/hung/1", "headway/gone/1"
OFFER_MS = 2_000  # as lua/include/queue.lua has it
ONE, TWO, LAST, BACK, SECOND = (f"{HERE}#{MANY + n}" for n in range(5))


@pytest.fixture(autouse=True)
def here(desk: Desk) -> Iterator[None]:
    """Two processes are heard, of which one does nothing."""
    with desk.raw.pubsub() as ear:  # type: ignore[no-untyped-call]
        for process in (HERE, HUNG):
            ear.subscribe(f"{PREFIX}{keys.WAKE_CHANNEL}{process}")
            while (message := ear.get_message(timeout=5)) is not None and message["type"] != "subscribe":
                pass
        yield


async def ask(desk: Desk, name: str, place: str = "") -> GetStep:
    """A stream that stands asks for one."""
    waiter = Waiter(name, place=place, owns_leases=True)
    return await desk.store.get(GetOrder(desk.name, lease_ms=HOUR_MS), waiter=waiter, budget_s=BUDGET_S)


def stand(desk: Desk, members: list[str]) -> None:
    """So many more stand in line, in this order."""
    last = desk.raw.hincrby(desk.key("meta"), "standing", len(members))
    first = last - len(members) + 1
    for start in range(0, len(members), 500):
        part = members[start : start + 500]
        desk.raw.zadd(desk.key("consumers"), {member: first + start + n for n, member in enumerate(part)})


async def keep_places(desk: Desk, count: int) -> None:
    """So many streams have broken. Of most it is written down as keep_place does."""
    for n in range(1, FIRST_PLACES + 1):
        await ask(desk, f"{HERE}#{n}")
        await desk.store.keep_place(desk.name, Waiter(f"{HERE}#{n}", n), f"@{n}", None, budget_s=BUDGET_S)
    places = [f"@{n}" for n in range(FIRST_PLACES + 1, count + 1)]
    stand(desk, places)
    for start in range(0, len(places), 500):
        part = places[start : start + 500]
        desk.raw.hset(desk.key("places"), mapping=dict.fromkeys(part, f"{desk.now_ms} {desk.now_ms - 1} 0"))
        desk.raw.zadd(desk.key("place_at"), dict.fromkeys(part, desk.now_ms))
    desk.at(1)
    while int(desk.raw.zcount(desk.key("place_at"), "-inf", desk.now_ms)):  # from then on their grace runs
        await desk.sweep()
    assert int(desk.raw.zcard(desk.key("consumers"))) == count
    assert await desk.is_sound()


async def steps_of(desk: Desk, order: GetOrder, waiter: Waiter | None = None) -> list[GetStep]:
    """Those of a call that is made until it is given something or is told to go on no more."""
    steps = [await desk.store.get(order, waiter=waiter, budget_s=BUDGET_S)]
    while steps[-1].left and not steps[-1].deliveries:
        waiter = waiter and Waiter(waiter.name, steps[-1].number)
        steps.append(await desk.store.get(order, waiter=waiter, budget_s=BUDGET_S))
        assert len(steps) <= MANY // AT_ONCE
    return steps


def turn_to(desk: Desk) -> str:
    told = desk.raw.hget(desk.key("meta"), "turn_to") or b""
    assert isinstance(told, bytes)
    return told.decode()


async def test_places_that_nobody_waits_for_do_not_stand_in_the_way(desk: Desk) -> None:
    await desk.create(place_grace_ms=GRACE_MS)
    await keep_places(desk, MANY)
    await ask(desk, ONE)
    await desk.put(b"1")
    for _ in range(MANY // AT_ONCE):
        before = desk.commands()
        await desk.sweep()
        assert desk.commands() - before < AT_ONCE + 32 + MOST_COMMANDS
    assert turn_to(desk) == ONE
    before = desk.commands()
    await desk.put(b"2")
    assert desk.commands() - before < MOST_COMMANDS
    before = desk.commands()
    assert (await ask(desk, ONE)).deliveries[0].payload == b"1"
    assert desk.commands() - before < MOST_COMMANDS
    assert await desk.is_sound()


async def test_who_comes_back_to_a_place_that_was_put_away_has_its_number(desk: Desk) -> None:
    await desk.create(place_grace_ms=GRACE_MS)
    await keep_places(desk, MANY)
    last = await ask(desk, LAST)
    await desk.put(b"1")
    while turn_to(desk) != LAST:
        await desk.sweep()
    assert (await ask(desk, LAST)).deliveries
    place = 3 * KEPT_NEAR
    back = await ask(desk, BACK, place=f"@{place}")
    assert (back.number, back.position) == (place, KEPT_NEAR + 1)
    standing, _ = await desk.store.keep_place(
        desk.name, Waiter(BACK, back.number), f"@{place}", None, budget_s=BUDGET_S
    )
    assert standing.position == KEPT_NEAR + 1
    second = await ask(desk, SECOND, place=f"@{place + 1}")
    assert (second.number, second.position) == (place + 1, KEPT_NEAR + 2)
    assert second.number < last.number
    assert await desk.is_sound()
    desk.at(GRACE_MS + 10)
    while int(desk.raw.zcard(desk.key("consumers"))) > 1:
        await desk.sweep()
    assert not desk.raw.exists(desk.key("places"))
    assert await desk.is_sound()


async def test_those_of_a_killed_process_are_dropped_in_steps_that_follow_each_other(desk: Desk) -> None:
    await desk.create()
    stand(desk, [f"{GONE}#{n}" for n in range(MANY)])
    await ask(desk, ONE)
    for step in range(1, MANY // AT_ONCE + 1):
        await (desk.put(b"1") if step == 1 else desk.sweep())
        assert int(desk.raw.zcard(desk.key("consumers"))) >= MANY + 1 - step * (AT_ONCE + 32)
        due = int(desk.raw.hget(desk.key("meta"), "due_said") or 0)
        assert turn_to(desk) or due == desk.now_ms  # else the sweeper would not come
    await desk.sweep()
    assert turn_to(desk) == ONE
    assert int(desk.raw.zcard(desk.key("consumers"))) == 1
    assert await desk.is_sound()


async def test_a_call_that_does_not_wait_is_told_to_go_on_until_they_are_dropped(desk: Desk) -> None:
    await desk.create()
    stand(desk, [f"{GONE}#{n}" for n in range(MANY)])
    await desk.put(b"1")
    steps = await steps_of(desk, GetOrder(desk.name, lease_ms=HOUR_MS))
    assert (len(steps[0].deliveries), steps[0].wait, steps[0].left) == (0, Wait.LINE, 1)
    assert [one.payload for one in steps[-1].deliveries] == [b"1"]
    assert await desk.is_sound()


async def test_whoever_is_there_ends_that(desk: Desk) -> None:
    await desk.create()
    stand(desk, [f"{GONE}#{n}" for n in range(MANY)])
    await ask(desk, ONE)
    await desk.put(b"1")
    *_, last = await steps_of(desk, GetOrder(desk.name, lease_ms=HOUR_MS))
    assert not last.deliveries


async def test_a_poll_is_not_too_soon_while_they_are_dropped(desk: Desk) -> None:
    policy = Policy(poll_base_ms=60_000, poll_max_ms=HOUR_MS)
    await desk.create(poll_base_ms=policy.poll_base_ms, poll_max_ms=policy.poll_max_ms)
    stand(desk, [f"{GONE}#{n}" for n in range(MANY)])
    order = GetOrder(desk.name, lease_ms=HOUR_MS, stands=True)
    first = await desk.store.get(order, waiter=Waiter(ONE), budget_s=BUDGET_S)
    waiter, hints = Waiter(ONE, first.number), poll_hints(policy, first.position)
    await desk.store.keep_place(desk.name, waiter, "@1", hints, budget_s=BUDGET_S)
    with pytest.raises(PollTooSoon):
        await desk.store.get(order, waiter=Waiter(ONE, place="@1"), budget_s=BUDGET_S)
    await desk.put(b"1")
    *_, last = await steps_of(desk, order, Waiter(ONE, place="@1"))
    assert [one.payload for one in last.deliveries] == [b"1"]
    assert await desk.is_sound()


async def test_a_process_that_hangs_is_waited_for_once_however_many_of_it_wait(desk: Desk) -> None:
    await desk.create()
    stand(desk, [f"{HUNG}#{n}" for n in range(MANY)])
    await ask(desk, ONE)
    await desk.put(b"1")
    assert turn_to(desk) == f"{HUNG}#0"
    desk.at(OFFER_MS)
    await desk.sweep()
    assert turn_to(desk) == ONE
    assert (await ask(desk, ONE)).deliveries
    assert await desk.is_sound()


async def test_nobody_overtakes_while_they_are_dropped(desk: Desk) -> None:
    await desk.create()
    stand(desk, [f"{GONE}#{n}" for n in range(MANY)])
    await ask(desk, ONE)
    await desk.put(b"1")
    newcomer = await ask(desk, TWO)
    assert (len(newcomer.deliveries), newcomer.wait) == (0, Wait.LINE)
    for _ in range(MANY // AT_ONCE):
        await desk.sweep()
    assert (await ask(desk, ONE)).deliveries
