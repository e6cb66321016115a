"""When a message that is nothing but a payload was put is known however long the line."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from headwayd.domain.model import DelayOrder, Policy
from integration.desk import BUDGET_S, HOUR_MS, START_MS, Desk

TICK_MS = 100  # as lua/include/put_times.lua has it
ENTRIES, OF_ENTRY, PART = 12_000, 2, 1_000
AT_ONCE = 500  # that one step buries


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


async def expiring(desk: Desk, tickets: Sequence[int]) -> None:
    """The time of these is over, and they go to the dead."""
    await desk.store.update(desk.name, Policy(dead_letter_expired=True), ["dead_letter_expired"], budget_s=BUDGET_S)
    await desk.put(b"x", time_to_live_ms=2)  # so it is looked then; it is the last of them
    desk.raw.zadd(desk.key("expiry"), {str(ticket): desk.now_ms + 1 for ticket in tickets})
    desk.at(desk.now_ms - START_MS + 2)


async def test_those_that_are_buried_together_are_looked_up_together(long: Desk) -> None:
    await expiring(long, random.Random(1).sample(range(1_000, ENTRIES * OF_ENTRY), AT_ONCE))
    looks = long.raw.info("commandstats").get("cmdstat_lindex", {"calls": 0})["calls"]
    await long.sweep()
    assert (await long.counts()).dead == AT_ONCE
    assert (
        long.raw.info("commandstats")["cmdstat_lindex"]["calls"] - looks <= 2 * AT_ONCE
    )  # one each is for something else
    page = await long.store.list_dead(long.name, page_size=AT_ONCE, page_token="", max_bytes=10**7, budget_s=BUDGET_S)
    assert len(page.messages) == AT_ONCE
    assert all(one.put_at_ms == put_at_ms(int(one.id.split("-")[1])) for one in page.messages)


async def test_fewer_are_buried_at_once_where_the_list_of_times_is_long(long: Desk) -> None:
    """Which is walked through for each: 250,000 entries, where up to 100,000 are none too many."""
    await expiring(long, range(1_001, 1_001 + AT_ONCE))
    entries = [f"{1 + n // 100}:{START_MS}" for n in range(250_000)]
    long.raw.delete(long.key("times"))
    for start in range(0, len(entries), 10 * PART):
        long.raw.rpush(long.key("times"), *entries[start : start + 10 * PART])
    dead: list[int] = []
    while not dead or dead[-1] < AT_ONCE:
        await long.sweep()
        dead.append((await long.counts()).dead)
        assert len(dead) < 9
    assert dead[:2] == [200, 400]


async def test_they_are_noted_on_by_a_clock_that_has_gone_back(desk: Desk) -> None:
    """As by a failover to a host whose clock is behind."""
    await desk.create()
    instants = [3_600_000, 0, 50, 10_000]
    for ms in instants:
        desk.at(ms)
        await desk.put_many([b"x"])
    instants[2] = 0  # within the resolution of the one before
    assert await peek(desk, 1, 4) == [(n + 1, START_MS + ms) for n, ms in enumerate(instants)]


async def test_what_the_sweeper_buries_keeps_it_also_when_it_is_put_back(desk: Desk) -> None:
    await desk.create(time_to_live_ms=1_000, dead_letter_expired=True)
    await desk.put(b"with an id", ids=["given"])
    await desk.put_many([b"bare"])
    desk.at(TICK_MS)
    await desk.put(b"alone")
    desk.at(5_000)
    await desk.sweep()
    put_at = {b"with an id": START_MS, b"bare": START_MS, b"alone": START_MS + TICK_MS}
    page = await desk.store.list_dead(desk.name, page_size=10, page_token="", max_bytes=10**6, budget_s=BUDGET_S)
    assert {one.payload: one.put_at_ms for one in page.messages} == put_at
    await desk.store.redrive(desk.name, "", message_ids=(), most=9, budget_s=BUDGET_S)
    assert {one.payload: one.put_at_ms for one in await desk.take(3)} == put_at


def times(desk: Desk) -> int:
    return int(desk.raw.llen(desk.key("times")))


@pytest.mark.parametrize("id_of", ["id-{}", ""], ids=["with-ids", "bare"])
async def test_times_that_the_head_has_passed_are_dropped_also_if_nobody_asks(desk: Desk, id_of: str) -> None:
    await desk.create()
    for n in range(100):
        desk.at(n * TICK_MS)
        await desk.put(b"x", ids=[id_of.format(n)])
        await desk.ack((await desk.take_one()).lease)
    assert times(desk) <= 2
    assert await desk.is_sound()


async def test_times_of_what_still_waits_stay(desk: Desk) -> None:
    await desk.create()
    for n in range(40):
        desk.at(n * TICK_MS)
        await desk.put(b"bare")
    await desk.ack(*[delivery.lease for delivery in await desk.take(10)])
    for n in range(40, 60):
        desk.at(n * TICK_MS)
        await desk.put(b"x", ids=[f"id-{n}"])
    assert times(desk) == 50
    assert await peek(desk, 1, 30) == [(n + 1, START_MS + n * TICK_MS) for n in range(10, 40)]
    deliveries = await desk.take(30)
    assert [one.put_at_ms for one in deliveries] == [START_MS + n * TICK_MS for n in range(10, 40)]


def book_as_acked(desk: Desk, count: int) -> None:
    """The first so many left the line, and nobody asked when they were put."""
    desk.raw.rpop(desk.key("q"), count)
    desk.raw.incrby(desk.key("consumed_messages"), count)
    for field in ("head", "seen_cons", "n_acked"):
        desk.raw.hset(desk.key("meta"), field, str(count))
    desk.raw.hincrby(desk.key("meta"), "seen_len", -count)


async def test_times_that_were_never_dropped_go_a_few_at_each_put_that_notes_one(long: Desk) -> None:
    """As in a queue of messages that tell it themselves, which an older version left."""
    book_as_acked(long, ENTRIES * OF_ENTRY)
    left = ENTRIES
    for n in range(1, 6):
        long.at((ENTRIES + n) * TICK_MS)
        before = long.commands()
        await long.put(b"x", ids=[f"id-{n}"])
        assert long.commands() - before <= 30
        assert left - times(long) in range(10, 50)
        left = times(long)
    assert await long.is_sound()


@pytest.mark.parametrize("act", ["get", "foreign"])
async def test_all_that_the_head_has_passed_go_in_one_command(long: Desk, act: str) -> None:
    """The first who asks does not drop them one by one."""
    skipped = ENTRIES * OF_ENTRY - 3
    if act == "get":
        book_as_acked(long, skipped)
    else:
        long.raw.rpop(long.key("q"), skipped)
        long.raw.incrby(long.key("consumed_messages"), skipped)
    before = long.commands()
    [delivery] = await long.take()
    assert delivery.put_at_ms == put_at_ms(skipped + 1)
    assert long.commands() - before < 70
    assert times(long) <= 2
    assert await peek(long, 1, 2) == [(skipped + n, put_at_ms(skipped + n)) for n in (2, 3)]
    assert await long.is_sound()


async def test_what_a_foreign_client_put_and_nobody_has_noticed_is_told_as_new(desk: Desk) -> None:
    await desk.create()
    await desk.put(b"old", b"older")
    desk.at(HOUR_MS)
    desk.raw.lpush(desk.key("q"), b"foreign")
    desk.raw.incr(desk.key("produced_messages"))
    desk.foreign_get()
    assert await peek(desk, 1, 9) == [(2, START_MS), (3, START_MS + HOUR_MS)]
    desk.foreign_get()
    assert await peek(desk, 1, 9) == [(3, START_MS + HOUR_MS)]
    assert (await desk.counts()).oldest_age_ms == 0
    await desk.sweep()
    desk.at(HOUR_MS + 50)
    assert await peek(desk, 1, 9) == [(3, START_MS + HOUR_MS)]
