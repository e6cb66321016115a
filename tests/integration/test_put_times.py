"""When a message that is nothing but a payload was put is known however long the line."""

from __future__ import annotations

import pytest

from headwayd.domain.model import DelayOrder
from integration.desk import BUDGET_S, START_MS, Desk

TICK_MS = 100  # as lua/include/queue.lua has it
ENTRIES, OF_ENTRY, PART = 12_000, 2, 1_000


def put_at_ms(ticket: int) -> int:
    return START_MS + (ticket - 1) // OF_ENTRY * TICK_MS


@pytest.fixture
async def long(desk: Desk) -> Desk:
    """A line that was put in twenty minutes, two messages every tenth of a second."""
    await desk.create()
    for _ in range(0, ENTRIES * OF_ENTRY, PART):
        await desk.put(*[b"x"] * PART)
    desk.raw.delete(desk.key("times"))
    for start in range(0, ENTRIES, PART):
        tickets = [1 + OF_ENTRY * n for n in range(start, start + PART)]
        desk.raw.rpush(desk.key("times"), *(f"{ticket}:{put_at_ms(ticket)}" for ticket in tickets))
    desk.at(ENTRIES * TICK_MS)
    assert await desk.is_sound()
    return desk


async def peek(desk: Desk, position: int, count: int) -> list[tuple[int, int | None]]:
    seen = await desk.store.peek(
        desk.name, from_position=position, max_messages=count, max_bytes=10**7, budget_s=BUDGET_S
    )
    return [(one.ticket, one.put_at_ms) for one in seen]


@pytest.mark.parametrize("position", [1, 2, 9_999, 10_000, 10_001, 12_345, 23_999, 24_000])
async def test_a_look_tells_it_anywhere_in_the_line(long: Desk, position: int) -> None:
    assert await peek(long, position, 1) == [(position, put_at_ms(position))]


@pytest.mark.parametrize("position", [1, 11_700, 23_001])
async def test_a_look_tells_it_of_a_thousand_at_once(long: Desk, position: int) -> None:
    assert await peek(long, position, 1_000) == [(n, put_at_ms(n)) for n in range(position, position + 1_000)]


async def test_it_is_not_known_of_those_before_the_first_that_is(long: Desk) -> None:
    long.raw.lpop(long.key("times"))
    assert await peek(long, 1, 4) == [(1, None), (2, None), (3, put_at_ms(3)), (4, put_at_ms(4))]


async def test_what_is_postponed_from_deep_in_the_line_keeps_it(long: Desk) -> None:
    [seen] = await long.store.peek(long.name, from_position=20_001, max_messages=1, max_bytes=10**7, budget_s=BUDGET_S)
    order = DelayOrder(queue=long.name, leases=(), message_ids=[seen.id], delay_ms=1_000)
    [postponed] = await long.store.delay(order, budget_s=BUDGET_S)
    assert postponed.settled.name == "DELAYED"
    long.at(ENTRIES * TICK_MS + 1_000)
    await long.sweep()
    [(_, known)] = await peek(long, ENTRIES * OF_ENTRY, 1)
    assert known == put_at_ms(20_001)
