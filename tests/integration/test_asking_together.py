"""One step of the store for several who ask: each has what it would have had, had they come one behind the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import pytest

from headwayd.domain.errors import QueueDeleted, QueueDrained
from headwayd.domain.model import GetOrder
from headwayd.domain.standing import Waiter
from headwayd.engine.ports import GetAsk, GetStep, Wait
from headwayd.store import keys, tokens
from integration.desk import BUDGET_S, HOUR_MS, Desk
from integration.pair import kept
from integration.test_exact_instants import listening

HERE, THERE = "headway/here", "headway/there"


@pytest.fixture(autouse=True)
def both_are_heard(desk: Desk) -> Iterator[None]:
    """Whose process nobody hears is dropped from the line."""
    with listening(desk, keys.WAKE_CHANNEL + HERE), listening(desk, keys.WAKE_CHANNEL + THERE):
        yield


def asks(desk: Desk, waiters: Sequence[Waiter | None], mosts: Sequence[int], acks: Sequence[str] = ()) -> list[GetAsk]:
    """One for each, who has one of the `acks`, as far as they go."""
    orders = [
        GetOrder(queue=desk.name, max_messages=most, max_bytes=10**7, ack=acks[i : i + 1])
        for i, most in enumerate(mosts)
    ]
    return list(map(GetAsk, orders, waiters))


async def together(
    desk: Desk, waiters: Sequence[Waiter | None], *, mosts: Sequence[int] = (), acks: Sequence[str] = ()
) -> list[GetStep]:
    """What each is told."""
    asked = asks(desk, waiters, mosts or [1] * len(waiters), acks)
    steps = await desk.store.get_together(asked, budget_s=BUDGET_S)
    done = [step for step in steps if isinstance(step, GetStep)]
    assert len(done) == len(steps)
    return done


async def standing(desk: Desk, count: int, *, process: str = HERE, start: int = 1) -> list[Waiter]:
    """So many who stand in line, all by one step."""
    waiters = [Waiter(name=f"{process}#{start + n}") for n in range(count)]
    steps = await together(desk, waiters)
    assert not any(step.deliveries for step in steps)
    return [
        waiter._replace(number=step.number, generation=step.generation)
        for waiter, step in zip(waiters, steps, strict=True)
    ]


def line(desk: Desk) -> list[str]:
    return [str(member, "utf-8") for member in cast(list[bytes], desk.raw.zrange(desk.key("consumers"), 0, -1))]


def payloads(steps: Sequence[GetStep]) -> list[list[bytes]]:
    return [[delivery.payload for delivery in step.deliveries] for step in steps]


async def test_who_gets_nothing_stands_in_line_in_the_order_of_asking(desk: Desk) -> None:
    await desk.create()
    steps = await together(desk, [Waiter(name=f"{HERE}#{n}") for n in (3, 1, 2)])
    assert [(step.number, step.position, step.length, step.wait) for step in steps] == [
        (n, n, 3, Wait.EMPTY) for n in (1, 2, 3)
    ]
    assert line(desk) == [f"{HERE}#{n}" for n in (3, 1, 2)]


async def test_those_who_stand_are_served_in_order_and_leave_the_line_at_once(desk: Desk) -> None:
    await desk.create()
    waiters = await standing(desk, 4)
    await desk.put(b"1", b"2", b"3", b"4")
    steps = await together(desk, waiters, mosts=[1, 2, 3, 1])
    assert payloads(steps) == [[b"1"], [b"2", b"3"], [b"4"], []]
    assert [step.wait for step in steps] == [Wait.NOTHING] * 3 + [Wait.EMPTY]
    assert [step.left for step in steps] == [0] * 4
    assert line(desk) == [waiters[3].name]
    assert (steps[3].position, steps[3].number) == (1, waiters[3].number)
    assert await desk.is_sound()


async def test_nobody_is_served_past_one_of_another_process_who_stands_between(desk: Desk) -> None:
    await desk.create()
    first = await standing(desk, 2)
    [between] = await standing(desk, 1, process=THERE)
    last = await standing(desk, 1, start=3)
    await desk.put(b"1", b"2", b"3", b"4")
    steps = await together(desk, [*first, *last])
    assert payloads(steps) == [[b"1"], [b"2"], []]
    assert steps[2].wait is Wait.LINE
    assert line(desk) == [between.name, last[0].name]
    assert payloads(await together(desk, [between])) == [[b"3"]]
    assert payloads(await together(desk, last)) == [[b"4"]]


async def test_newcomers_leave_to_those_who_stand_what_is_theirs(desk: Desk) -> None:
    await desk.create()
    await standing(desk, 2, process=THERE)
    await desk.put(b"1", b"2", b"3")
    steps = await together(desk, [Waiter(name=f"{HERE}#1"), None, Waiter(name=f"{HERE}#2")])
    assert payloads(steps) == [[b"1"], [], []]
    assert [step.position for step in steps] == [0, 0, 3]
    assert [step.wait for step in steps[1:]] == [Wait.LINE, Wait.LINE]


@pytest.mark.parametrize("is_bundled", [False, True])
async def test_what_one_has_earned_by_settling_goes_to_nobody_else(desk: Desk, is_bundled: bool) -> None:
    await desk.create()
    await desk.put(*[b"0"] * 12)
    held = [one.lease for one in (await desk.take(12) if is_bundled else [await desk.take_one() for _ in range(12)])]
    assert await desk.ack(held[0], held[5]) == ["ACKED"] * 2
    await standing(desk, 4, process=THERE)
    await desk.put(b"1", b"2", b"3", b"4", b"5")  # so there is one more than they can have
    orders = [
        GetOrder(queue=desk.name, max_messages=most, max_bytes=10**7, ack=ack)
        for most, ack in (
            (1, []),
            (1, []),
            (1, [held[0]]),
            (3, [held[1]]),
            (3, [held[2], held[5], held[3]]),
            (1, held[6:9]),
        )
    ]
    waiters = [Waiter(name=f"{HERE}#{n}") for n, _ in enumerate(orders)]
    steps = await desk.store.get_together(list(map(GetAsk, orders, waiters)), budget_s=BUDGET_S)
    done = [step for step in steps if isinstance(step, GetStep)]
    assert payloads(done) == [[b"1"], [], [], [b"2"], [b"3", b"4"], [b"5"]]
    assert [step.wait is Wait.NOTHING for step in done] == [True, False, False, True, True, True]
    assert [step.position for step in done] == [0, 5, 6, 0, 0, 0]
    assert len({tokens.decode(each.lease).nonce for step in done for each in step.deliveries}) == 4
    assert await desk.is_sound()


async def test_the_first_may_get_nothing_though_one_behind_has_earned_something(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"0")
    held = await desk.take_one()
    await standing(desk, 1, process=THERE)
    await desk.put(b"1")
    orders = [GetOrder(queue=desk.name, max_bytes=10**7, ack=ack) for ack in ([], [held.lease])]
    waiters = [Waiter(name=f"{HERE}#1"), Waiter(name=f"{HERE}#2")]
    first, second = await desk.store.get_together(list(map(GetAsk, orders, waiters)), budget_s=BUDGET_S)
    assert isinstance(first, GetStep)
    assert isinstance(second, GetStep)
    assert payloads([first, second]) == [[], [b"1"]]
    assert (first.position, first.wait) == (2, Wait.EMPTY)


async def test_who_acks_late_has_earned_nothing(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"0", b"1")
    lapsed, running = await desk.take_one(), await desk.take_one(lease_ms=HOUR_MS)
    await standing(desk, 1, process=THERE)
    desk.at(1_000)
    await desk.put(b"2")
    waiters = [Waiter(name=f"{HERE}#{n}") for n in range(2)]
    first, second = await together(desk, waiters, acks=[lapsed.lease, running.lease])
    assert [one.settled.name for one in (*first.settled, *second.settled)] == ["ACKED"] * 2
    assert payloads([first, second]) == [[], [b"2"]]
    assert first.ended == 1
    assert await desk.is_sound()


async def test_slots_bound_what_all_get_together(desk: Desk) -> None:
    await desk.create(limit=2)
    waiters = await standing(desk, 3)
    await desk.put(b"1", b"2", b"3")
    steps = await together(desk, waiters)
    assert payloads(steps) == [[b"1"], [b"2"], []]
    assert steps[2].wait is Wait.SLOT


async def test_one_whom_the_store_had_dropped_has_its_place_again(desk: Desk) -> None:
    await desk.create()
    waiters = await standing(desk, 3)
    desk.raw.zrem(desk.key("consumers"), waiters[1].name)
    steps = await together(desk, waiters)
    assert [step.was_dropped for step in steps] == [True] * 3
    assert [step.position for step in steps] == [1, 2, 3]


async def test_nobody_takes_or_stands_in_another_queue_of_the_name(desk: Desk) -> None:
    await desk.create()
    waiters = await standing(desk, 3)
    await desk.store.delete(desk.name, budget_s=BUDGET_S)
    await desk.create()
    await desk.put(b"1")
    for waiter in waiters:
        desk.raw.zadd(desk.key("consumers"), {waiter.name: waiter.number})
    with pytest.raises(QueueDeleted):
        await together(desk, waiters)
    assert line(desk) == []
    assert (await desk.counts()).length == 1


async def test_each_has_a_bundle_of_its_own_and_settles_its_own(desk: Desk) -> None:
    await desk.create()
    await desk.put(*(b"%d" % n for n in range(10)))
    desk.at(500)
    await desk.put(*(b"%d" % n for n in range(10, 20)))
    steps = await together(desk, [None] * 4, mosts=[5, 10, 1, 30])
    assert [len(step.deliveries) for step in steps] == [5, 10, 1, 4]
    assert kept(desk) == (1, 3)
    assert [delivery.ticket for step in steps for delivery in step.deliveries] == list(range(1, 21))
    waited = [delivery.waited_ms for step in steps for delivery in step.deliveries]
    assert waited == [500] * 10 + [0] * 10
    secrets = [{tokens.decode(delivery.lease).nonce for delivery in step.deliveries} for step in steps]
    assert [len(each) for each in secrets] == [1] * 4
    assert len(set.union(*secrets)) == 4
    leases = [delivery.lease for step in steps for delivery in step.deliveries]
    assert await desk.is_sound()
    [again] = await desk.give_back(leases[6], delay_ms=0)
    assert again.settled.name == "RELEASED"
    assert kept(desk) == (10, 2)
    steps = await together(desk, [None, None, None], acks=leases[:2])
    assert [[one.settled.name for one in step.settled] for step in steps] == [["ACKED"], ["ACKED"], []]
    assert payloads(steps) == [[b"6"], [], []]
    assert await desk.ack(*leases[2:6], *leases[7:]) == ["ACKED"] * 17
    assert await desk.is_sound()


async def test_when_nothing_can_come_any_more_those_are_told_who_settled_nothing(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"1")
    held = await desk.take_one()
    await desk.store.close_queue(desk.name, budget_s=BUDGET_S)
    asked = asks(desk, [Waiter(name=f"{HERE}#1"), Waiter(name=f"{HERE}#2"), None], [1, 1, 1], [held.lease])
    first, *others = await desk.store.get_together(asked, budget_s=BUDGET_S)
    assert isinstance(first, GetStep)
    assert [one.settled.name for one in first.settled] == ["ACKED"]
    assert [type(one) for one in others] == [QueueDrained] * 2
    assert line(desk) == []
