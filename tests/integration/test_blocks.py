"""Messages that come back while thousands that came back before stand before their place: no step moves them all. They
begin a block of their own at the head, and everybody is told the place in which they stand."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from typing import cast

import pytest

from harness import StoreServer
from headwayd.domain.places import Happening
from headwayd.engine.watching.line import Glance, Line
from integration.desk import BUDGET_S, HOUR_MS, Desk, desk_at, queue_of

MOST_MOVED = 2_000  # as lua/include/reach.lua has it
BLOCK = 2**43  # as lua/include/blocks.lua has it
PART = 500
REPEATED = 15
SLOWER, ROOM_US = (
    2,
    1_500,
)  # machines are shared; to move 1,000 of 1 KB takes about 3,000, and 20,000 as many times more


async def leased(desk: Desk, count: int, *, size: int = 0) -> list[str]:
    """So many messages, whose payloads are their numbers from 1 on, and as long as that."""
    leases: list[str] = []
    for start in range(1, count + 1, PART):
        numbers = range(start, min(start + PART, count + 1))
        await desk.put(*(b"%0*d" % (size, n) for n in numbers))
        leases += [delivery.lease for delivery in await desk.take(len(numbers), lease_ms=HOUR_MS)]
    assert len(leases) == count
    return leases


async def release(desk: Desk, leases: Sequence[str]) -> None:
    await desk.store.release(desk.name, leases, budget_s=BUDGET_S)


def moves(desk: Desk) -> int:
    """How often something was taken out of the list."""
    return int(desk.raw.info("commandstats").get("cmdstat_rpop", {"calls": 0})["calls"])


def layout(desk: Desk) -> int:
    return int(desk.raw.hget(desk.key("meta"), "layout") or 0)


async def line_of(desk: Desk) -> list[str]:
    """The names of all that wait, as a look at them shows; each must be told the same position."""
    seen = await desk.store.peek(desk.name, from_position=1, max_messages=10**5, max_bytes=10**8, budget_s=BUDGET_S)
    names = [one.id for one in seen]
    assert [one.position for one in seen] == list(range(1, len(seen) + 1))
    places = await desk.store.places(desk.name, names, with_shape=True, budget_s=BUDGET_S)
    assert [place.position for place in places.places] == list(range(1, len(seen) + 1))
    assert places.shape is not None
    line = Line(Glance(places.numbers, 0.0), places.shape)
    assert [line.position(int(place.ref)) for place in places.places] == list(range(1, len(seen) + 1))
    return names


async def test_those_that_come_back_behind_thousands_begin_a_block_at_the_head(desk: Desk) -> None:
    await desk.create(max_attempts=0)
    leases = await leased(desk, MOST_MOVED + 20)
    await release(desk, leases[: MOST_MOVED + 1])
    assert layout(desk) == 1
    before = moves(desk)
    await release(desk, leases[MOST_MOVED + 3 : MOST_MOVED + 5])
    assert moves(desk) == before
    assert layout(desk) == 2
    for lease in (leases[MOST_MOVED + 6], leases[MOST_MOVED + 2]):
        await release(desk, [lease])
    first = [MOST_MOVED + n for n in (3, 4, 5, 7)]
    assert len(await line_of(desk)) == MOST_MOVED + 5
    assert await desk.is_sound()
    taken = await desk.take(1_000)
    assert [int(one.payload) for one in taken] == [*first, *range(1, 997)]
    await release(desk, [taken[500].lease])  # of two that were behind: into the block that is first now
    assert [int(one.payload) for one in await desk.take(2)] == [497, 997]
    while taken := await desk.take(1_000):
        await desk.ack(*(one.lease for one in taken))
    assert await desk.is_sound()
    assert layout(desk) == 1


async def test_leases_that_lapse_behind_thousands_lapse_at_once(desk: Desk) -> None:
    await desk.create(max_attempts=0)
    leases = await leased(desk, MOST_MOVED + 3)
    await release(desk, leases[: MOST_MOVED + 1])
    await desk.store.extend(desk.name, [leases[-1]], 1_000, budget_s=BUDGET_S)
    desk.at(1_000)
    await desk.sweep()
    assert (await desk.counts()).returned == MOST_MOVED + 2
    assert int((await desk.take_one()).payload) == MOST_MOVED + 3
    assert await desk.is_sound()


async def test_who_watches_learns_of_blocks_as_they_come(desk: Desk) -> None:
    await desk.create(max_attempts=0)
    leases = await leased(desk, MOST_MOVED + 4)
    await release(desk, leases[: MOST_MOVED + 1])
    seen = await desk.store.places(desk.name, [], with_shape=True, budget_s=BUDGET_S)
    assert seen.shape is not None
    line = Line(Glance(seen.numbers, 0.0), seen.shape)
    await release(desk, leases[MOST_MOVED + 1 : MOST_MOVED + 3])
    [taken] = await desk.take(1)
    numbers = seen.numbers
    feed = await desk.store.feed(desk.name, generation=numbers.generation, logged=numbers.logged, budget_s=BUDGET_S)
    assert feed.events is not None
    assert [event.what for event in feed.events] == [Happening.BACK, Happening.BACK, Happening.LEASED]
    for event in feed.events:
        line.apply(event)
    assert line.move(Glance(feed.numbers, 0.0))
    assert [line.position(ticket) for ticket in (taken.ticket, taken.ticket + 1, 1, 2)] == [0, 1, 2, 3]


async def test_check_notices_an_order_that_is_none(desk: Desk) -> None:
    await desk.create()
    leases = await leased(desk, 3)
    await release(desk, leases)
    desk.raw.zadd(desk.key("returned"), {"3": 3 - BLOCK})
    desk.raw.hset(desk.key("meta"), "layout", 2)
    desk.raw.zadd(desk.key("returned"), {"2": 5 - BLOCK})
    findings = (await desk.store.check(desk.name, max_entries=10**6, budget_s=BUDGET_S)).findings
    assert len(findings) == 1
    assert "ticket 2 has the score" in findings[0]


@pytest.mark.long
async def test_giving_back_takes_no_longer_the_more_came_back_before(
    desk: Desk, figure: Callable[[str, object], None]
) -> None:
    async def median_us(of: Desk, count: int) -> float:
        """Of a step of the store that gives back one, behind `count`."""
        await of.create(max_attempts=0)
        leases = await leased(of, count + REPEATED, size=1_000)
        for start in range(0, count, PART):
            await release(of, leases[start : start + PART])
        busy = []
        for lease in leases[count:]:
            before = of.raw.info("commandstats")["cmdstat_evalsha"]["usec"]
            await release(of, [lease])
            busy.append(of.raw.info("commandstats")["cmdstat_evalsha"]["usec"] - before)
        return float(statistics.median(busy))

    few = await median_us(desk, MOST_MOVED // 2)
    other = Desk(desk.store, desk.raw, f"{desk.name}-more")
    try:
        many = await median_us(other, 10 * MOST_MOVED)
    finally:
        await desk.store.delete(other.name, budget_s=BUDGET_S)
    figure(f"give back one of 1 KB behind {MOST_MOVED // 2:,} / {10 * MOST_MOVED:,}", f"{few:.0f} / {many:.0f} µs")
    assert many < SLOWER * few + ROOM_US


# -- with small numbers, so that everything happens: blocks, holes in them, foreign clients ----------------------------


@pytest.fixture
async def small(store_server: StoreServer, request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    reach = "local NEAR = 2\nlocal MOST_MOVED = 3\n"
    async with desk_at(store_server, queue_of(request), reach=reach) as made:
        yield made


@pytest.mark.parametrize("seed", range(4, 12))  # in each of them all of that happens
async def test_places_are_those_of_the_line_whatever_happens(small: Desk, seed: int) -> None:
    chance = random.Random(seed)
    await small.create(max_attempts=0)
    out: dict[str, str] = {}  # name → lease
    made = most_blocks = most_holes = 0
    for _ in range(200):
        match chance.choice(
            ["put", "put", "take", "take", *["release"] * 5, "withdraw", "withdraw", "ack", "foreign get"]
        ):
            case "put":
                names = [f"n{made + n}" for n in range(chance.randint(1, 8))]
                made += len(names)
                await small.put(*[b"x"] * len(names), ids=names)
            case "take":
                line = await line_of(small)
                taken = await small.take(chance.randint(1, 8), lease_ms=HOUR_MS)
                assert [one.id for one in taken] == line[: len(taken)]
                out |= {one.id: one.lease for one in taken}
            case "release" if out:
                back = chance.sample(sorted(out), min(len(out), chance.randint(1, 3)))
                line = await line_of(small)
                await release(small, [out.pop(name) for name in back])
                assert [name for name in await line_of(small) if name not in back] == line
            case "withdraw":
                line = await line_of(small)
                near = line[:12]
                gone = chance.sample(near, min(len(near), chance.randint(1, 2)))
                assert await small.withdraw(*gone) == [""] * len(gone)
                assert await line_of(small) == [name for name in line if name not in gone]
            case "ack" if out:
                assert await small.ack(out.pop(chance.choice(sorted(out)))) == ["ACKED"]
            case "foreign get":
                for _ in range(3):  # until no hole is near the head: here a step takes out but the first of them
                    await small.sweep()
                line = await line_of(small)
                small.foreign_get()
                assert await line_of(small) == line[1:]
                await small.sweep()
        assert await small.is_sound()
        returned = cast(list[tuple[bytes, float]], small.raw.zrange(small.key("returned"), 0, -1, withscores=True))
        blocks = {math.ceil(-order / BLOCK) if order < 0 else 0 for _, order in returned}
        most_blocks = max(most_blocks, len(blocks))
        if len(blocks) > 1:
            most_holes = max(most_holes, len(small.raw.zinter([small.key("returned"), small.key("holes")])))
    assert most_blocks > 1
    assert most_holes > 0
