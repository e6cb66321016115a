"""What arming a hint says of a queue, and what a Get says of what is left: a look that would be in vain is not made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from headwayd.domain.model import GetOrder
from integration.desk import BUDGET_S, Desk


async def nothing(desk: Desk) -> None:
    pass


async def put(desk: Desk) -> None:
    await desk.put(b"x")


async def put_and_take(desk: Desk) -> None:
    await desk.put(b"x")
    await desk.take_one()


async def put_later(desk: Desk) -> None:
    await desk.put(b"x", delay_ms=1_000)


async def close(desk: Desk) -> None:
    await desk.store.close_queue(desk.name, budget_s=BUDGET_S)


async def take_a_role(desk: Desk, role: str) -> None:
    desk.raw.rpop(desk.key(role))


async def take_the_producers_role(desk: Desk) -> None:
    await take_a_role(desk, "producer_free")


async def take_the_consumers_role(desk: Desk) -> None:
    await take_a_role(desk, "consumer_free")


async def close_while_a_producer_puts(desk: Desk) -> None:
    await close(desk)
    await take_the_producers_role(desk)


async def put_while_a_producer_puts(desk: Desk) -> None:
    await put(desk)
    await take_the_producers_role(desk)


async def delete(desk: Desk) -> None:
    desk.raw.delete(desk.key("bound"))


CASES = [
    (nothing, False),
    (put_and_take, False),
    (put_later, False),  # falling due is told by the sweeper
    (put, True),
    (close, True),
    (take_the_producers_role, True),
    (take_the_consumers_role, True),
    (close_while_a_producer_puts, True),
    (put_while_a_producer_puts, True),
    (delete, True),
]


@pytest.mark.parametrize(("befalls", "is_worth_a_look"), CASES, ids=lambda each: getattr(each, "__name__", ""))
async def test_arming_says_whether_a_look_may_find_something(
    desk: Desk, befalls: Callable[[Desk], Awaitable[None]], *, is_worth_a_look: bool
) -> None:
    await desk.store.start()
    await desk.create()
    try:
        await befalls(desk)
        for until_drained in (False, True):
            assert await desk.store.arm(desk.name, until_drained=until_drained) is is_worth_a_look
    finally:
        for role in ("producer_free", "consumer_free"):
            if not desk.raw.exists(desk.key(role)):
                desk.raw.lpush(desk.key(role), 0)
        if befalls is delete:
            await desk.create()


async def test_arming_without_a_connection_says_nothing_about_the_queue(desk: Desk) -> None:
    """The store was not started, so nothing will be heard."""
    await desk.create()
    assert await desk.store.arm(desk.name, until_drained=False)


@pytest.mark.parametrize(("limit", "left"), [(0, 3), (3, 1), (2, 0)])
async def test_a_get_says_how_many_more_could_be_leased(desk: Desk, limit: int, left: int) -> None:
    await desk.create(limit=limit)
    await desk.put(b"a", b"b", b"c", b"d", b"e")
    order = GetOrder(queue=desk.name, max_messages=2, lease_ms=1_000, max_bytes=10**7)
    step = await desk.store.get(order, budget_s=BUDGET_S)
    assert (len(step.deliveries), step.left) == (2, left)
