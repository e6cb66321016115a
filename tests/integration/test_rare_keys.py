"""A step asks once for all that most queues do not have. What it makes itself of these it knows of at its end, and
where there is nothing of them it asks for nothing by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import cast

import pytest

from headwayd.domain.blocked import BlockedPut
from headwayd.domain.hints import PollHints
from headwayd.domain.model import GetOrder
from headwayd.domain.standing import Waiter
from headwayd.engine.ports import Wait
from headwayd.store import keys
from integration.desk import BUDGET_S, HOUR_MS, START_MS, Desk
from integration.test_asking_together import HERE, line, payloads, standing, together
from integration.test_exact_instants import listening

# Of a queue of which there is nothing but messages, with nobody in line.
PUT_COMMANDS, GET_AND_ACK_COMMANDS = 17, 30


@pytest.fixture(autouse=True)
def waiters_are_heard(desk: Desk) -> Iterator[None]:
    """Whose process nobody hears is dropped from the line."""
    with listening(desk, keys.WAKE_CHANNEL + HERE):
        yield


def told_due(desk: Desk) -> int:
    """When time alone is next to bring something, as all processes were told; in ms behind the start."""
    return int(cast(bytes, desk.raw.hget(desk.key("meta"), "due_said"))) - START_MS


async def test_what_is_put_for_later_is_told_to_be_due_by_the_step_that_puts_it(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"later", delay_ms=5_000)
    assert told_due(desk) == 5_000


async def test_what_goes_back_for_later_is_told_to_be_due_by_the_step_that_gives_it_back(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"later")
    delivery = await desk.take_one(lease_ms=HOUR_MS)
    await desk.give_back(delivery.lease, delay_ms=7_000)
    assert told_due(desk) == 7_000


async def test_a_place_is_told_to_lapse_by_the_step_that_keeps_it(desk: Desk) -> None:
    await desk.create()
    [waiter] = await standing(desk, 1)
    hints = PollHints(poll_min_ms=1_000, poll_max_ms=3_000)
    await desk.store.keep_place(desk.name, waiter, "place", hints, budget_s=BUDGET_S)
    assert told_due(desk) == 3_001


async def test_a_put_that_comes_back_to_a_queue_with_room_is_called_by_the_step_that_lets_it_stand(desk: Desk) -> None:
    await desk.create(bound=1)
    again = BlockedPut(waiter=f"{HERE}#1", number=1, producer="me", generation="")
    await desk.store.blocked(desk.name, ["me"], again=[again], budget_s=BUDGET_S)
    assert desk.raw.hget(desk.key("meta"), "offer_to") == again.waiter.encode()


async def test_a_put_that_finds_no_room_stands_and_leaves_its_turn_to_whoever_was_there(desk: Desk) -> None:
    await desk.create(bound=1)
    await desk.put(b"fills it")
    steps = [await desk.put(b"waits", waiter=f"{HERE}#{n}") for n in (1, 2)]
    assert [step.wait for step in steps] == [Wait.ROOM] * 2
    await desk.take_one()
    assert desk.raw.hget(desk.key("meta"), "offer_to") == f"{HERE}#1".encode()


async def test_who_finds_nothing_but_what_has_expired_stands_in_a_line_of_one(desk: Desk) -> None:
    await desk.create()
    await desk.put(*[b"old"] * 600, time_to_live_ms=1_000)  # more than one step takes away
    desk.at(2_000)
    [step] = await together(desk, [Waiter(name=f"{HERE}#1")], mosts=[1_000])
    assert (step.wait, step.position, step.length) == (Wait.EMPTY, 1, 1)
    assert line(desk) == [f"{HERE}#1"]


async def test_who_gets_nothing_of_what_those_before_it_got_stands_in_a_line_of_one(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"one")
    steps = await together(desk, [Waiter(name=f"{HERE}#{n}") for n in (1, 2)])
    assert payloads(steps) == [[b"one"], []]
    assert (steps[1].position, steps[1].length) == (1, 1)


async def test_what_is_left_calls_those_who_stand_and_nobody_where_nobody_does(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"1", b"2")
    await desk.take_one()
    assert desk.raw.hget(desk.key("meta"), "turn_to") == b""
    await desk.take_one()
    [waiter] = await standing(desk, 1)
    await desk.put(b"3", b"4")
    assert desk.raw.hget(desk.key("meta"), "turn_to") == waiter.name.encode()


async def test_a_closed_queue_is_drained_when_its_last_lease_is_settled_and_not_before(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"last")
    delivery = await desk.take_one()
    await desk.store.close_queue(desk.name, budget_s=BUDGET_S)
    [step] = await together(desk, [Waiter(name=f"{HERE}#1")])
    assert step.wait is Wait.DRAIN
    assert await desk.ack(delivery.lease) == ["ACKED"]


@pytest.mark.parametrize("has_id", [True, False], ids=["with an id", "without"])
@pytest.mark.parametrize("is_owned", [True, False], ids=["of a stream", "of a call"])
async def test_an_ack_ends_what_is_known_of_id_and_stream(desk: Desk, has_id: bool, is_owned: bool) -> None:
    await desk.create()
    await desk.put(b"x", ids=["id"] if has_id else [])
    order = GetOrder(queue=desk.name, max_messages=1, max_bytes=10**7, lease_ms=1_000)
    waiter = Waiter(name=f"{HERE}#1", owns_leases=True) if is_owned else None
    step = await desk.store.get(order, waiter=waiter, budget_s=BUDGET_S)
    assert desk.raw.hlen(desk.key("owners")) == is_owned
    assert await desk.ack(step.deliveries[0].lease) == ["ACKED"]
    assert desk.raw.hlen(desk.key("owners")) == 0
    kept = desk.raw.hget(desk.key("ids"), "id")
    assert kept is None if not has_id else cast(bytes, kept).startswith(b"fa")
    assert await desk.is_sound()


async def commands(desk: Desk, step: Callable[[], Awaitable[object]]) -> int:
    """How many commands the script of a step runs."""
    before = desk.commands()
    await step()
    return desk.commands() - before - 1  # the call of the script


async def test_a_step_asks_for_nothing_that_a_plain_queue_does_not_have(
    desk: Desk, figure: Callable[[str, object], None]
) -> None:
    await desk.create()
    await desk.put(*[b"x"] * 10)
    waiter, lease = Waiter(name=f"{HERE}#1"), (await desk.take_one()).lease

    async def get_and_ack() -> None:
        nonlocal lease
        order = GetOrder(queue=desk.name, max_messages=1, max_bytes=10**7, ack=[lease])
        [delivery] = (await desk.store.get(order, waiter=waiter, budget_s=BUDGET_S)).deliveries
        lease = delivery.lease

    await get_and_ack()  # of the first it is remembered when that was
    put, get = await commands(desk, lambda: desk.put(b"x")), await commands(desk, get_and_ack)
    figure("commands of a Put; of a Get that acks", f"{put}; {get}")
    assert put <= PUT_COMMANDS
    assert get <= GET_AND_ACK_COMMANDS
