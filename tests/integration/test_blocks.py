"""Messages that come back while thousands that came back before stand before their place: no step moves them all. They
begin a block of their own at the head, and everybody is told the place in which they stand."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import cast

import pytest

from harness import StoreServer
from headwayd.domain.places import Happening
from headwayd.engine.watching.line import Glance, Line
from integration.desk import BUDGET_S, FAR, HOUR_MS, Desk, desk_at, queue_of

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
    reach = f"local NEAR = 2\nlocal MOST_MOVED = 3\n{FAR}"
    async with desk_at(store_server, queue_of(request), reach=reach) as made:
        yield made


async def small_line(small: Desk) -> list[str]:
    """Twelve messages, n1 to n12, in two blocks: of those that were leased n6 to n9 have lapsed, and stand before n1 to
    n5, which came back first. The leases, in order."""
    await small.create(max_attempts=0)
    await small.put(*(b"%d" % n for n in range(1, 13)), ids=[f"n{n}" for n in range(1, 13)])
    early, late = await small.take(5, lease_ms=HOUR_MS), await small.take(4, lease_ms=1_000)
    leases = [delivery.lease for delivery in [*early, *late]]
    await release(small, leases[:5])
    small.at(1_000)
    await small.sweep()
    assert await line_of(small) == [f"n{n}" for n in (6, 7, 8, 9, 1, 2, 3, 4, 5, 10, 11, 12)]
    assert layout(small) == 2
    return leases


async def take_up_again(desk: Desk, lease: str, *, lease_ms: int = HOUR_MS) -> str:
    """How Extend answers."""
    [extended] = await desk.store.extend(desk.name, [lease], lease_ms, budget_s=BUDGET_S)
    return extended.settled.name


@pytest.mark.parametrize("how", ["released", "given back", "lapsed"])
async def test_what_was_taken_up_again_from_deep_in_the_line_comes_back_to_its_place(small: Desk, how: str) -> None:
    leases = await small_line(small)
    before = await line_of(small)
    assert await take_up_again(small, leases[7], lease_ms=1_000) == "EXTENDED"
    assert small.raw.zcard(small.key("holes")) == 1
    assert await line_of(small) == [name for name in before if name != "n8"]
    if how == "lapsed":
        small.at(2_000)
        await small.sweep()
    elif how == "released":
        await release(small, [leases[7]])
    else:
        await small.give_back(leases[7], delay_ms=0)
    assert await small.is_sound()
    assert await line_of(small) == before
    assert small.raw.zcard(small.key("holes")) == 0
    taken = await small.take(12)
    assert [f"n{int(one.payload)}" for one in taken] == before
    assert [one.attempt for one in taken[:4]] == [2, 2, 2 if how != "released" else 1, 2]
    assert await small.is_sound()


async def test_what_expires_while_it_was_taken_up_again_does_not_come_back(small: Desk) -> None:
    await small.create(max_attempts=0)
    await small.put(*[b"x"] * 6, ids=[f"n{n}" for n in range(6)], time_to_live_ms=5_000)
    leases = [delivery.lease for delivery in await small.take(3)]
    small.at(1_000)
    await small.sweep()
    assert await take_up_again(small, leases[2]) == "EXTENDED"
    small.at(5_000)
    await small.give_back(leases[2], delay_ms=0)
    assert (await small.counts()).expired == 6
    assert await small.is_sound()


async def test_who_watches_learns_where_that_has_come_back(small: Desk) -> None:
    leases = await small_line(small)
    seen = await small.store.places(small.name, [], with_shape=True, budget_s=BUDGET_S)
    assert seen.shape is not None
    line = Line(Glance(seen.numbers, 0.0), seen.shape)
    assert await take_up_again(small, leases[7]) == "EXTENDED"
    await release(small, [leases[7]])
    numbers = seen.numbers
    feed = await small.store.feed(small.name, generation=numbers.generation, logged=numbers.logged, budget_s=BUDGET_S)
    assert feed.events is not None
    assert [event.what for event in feed.events] == [Happening.LEASED, Happening.BACK]
    for event in feed.events:
        line.apply(event)
    assert [line.position(ticket) for ticket in (6, 7, 8, 9, 1)] == [1, 2, 3, 4, 5]


class Whatever:
    """What happens by chance to a queue, whose line must be as it was but for that."""

    def __init__(self, desk: Desk, chance: random.Random) -> None:
        self.desk = desk
        self.chance = chance
        self.out: dict[str, str] = {}  # name → lease
        self.late: dict[str, str] = {}  # of those whose lease has lapsed, and whom nobody took since
        self.made = 0
        self.ms = 0
        self.filled = 0  # how often one came back to its hole

    def some(self, names: Iterable[str], most: int) -> list[str]:
        among = list(names)
        return self.chance.sample(among, min(len(among), self.chance.randint(1, most)))

    def holes(self) -> int:
        """In which something can come back."""
        return len(self.desk.raw.zinter([self.desk.key("returned"), self.desk.key("holes")]))

    async def put(self) -> None:
        names = [f"n{self.made + n}" for n in range(self.chance.randint(1, 8))]
        self.made += len(names)
        await self.desk.put(*[b"x"] * len(names), ids=names)

    async def take(self) -> None:
        line = await line_of(self.desk)
        taken = await self.desk.take(self.chance.randint(1, 8), lease_ms=HOUR_MS)
        assert [one.id for one in taken] == line[: len(taken)]
        for one in taken:
            self.out[one.id] = one.lease
            self.late.pop(one.id, None)

    async def release(self) -> None:
        back = self.some(sorted(self.out), 3)
        line, holes = await line_of(self.desk), self.holes()
        await release(self.desk, [self.out.pop(name) for name in back])
        assert [name for name in await line_of(self.desk) if name not in back] == line
        self.filled += self.holes() < holes

    async def lapse(self) -> None:
        gone = self.some(sorted(self.out), 5)
        line = await line_of(self.desk)
        await self.desk.store.extend(self.desk.name, [self.out[name] for name in gone], 1_000, budget_s=BUDGET_S)
        self.late |= {name: self.out.pop(name) for name in gone}
        self.ms += 1_000
        self.desk.at(self.ms)
        await self.desk.sweep()
        assert [name for name in await line_of(self.desk) if name not in gone] == line

    async def take_up_again(self) -> None:
        line = await line_of(self.desk)
        self.late = {name: lease for name, lease in self.late.items() if name in line}
        if self.late:
            name, lease = self.late.popitem()
            assert await take_up_again(self.desk, lease) == "EXTENDED"
            assert await line_of(self.desk) == [one for one in line if one != name]
            self.out[name] = lease

    async def withdraw(self) -> None:
        line = await line_of(self.desk)
        gone = self.some(line[:12], 2)
        assert await self.desk.withdraw(*gone) == [""] * len(gone)
        assert await line_of(self.desk) == [name for name in line if name not in gone]

    async def ack(self) -> None:
        for name in self.some(sorted(self.out), 1):
            assert await self.desk.ack(self.out.pop(name)) == ["ACKED"]

    async def foreign_get(self) -> None:
        for _ in range(3):  # until no hole is near the head: here a step takes out but the first of them
            await self.desk.sweep()
        line = await line_of(self.desk)
        self.desk.foreign_get()
        assert await line_of(self.desk) == line[1:]
        await self.desk.sweep()


# What happens, and how often.
WEIGHTS = {
    Whatever.put: 2,
    Whatever.take: 2,
    Whatever.release: 5,
    Whatever.lapse: 1,
    Whatever.take_up_again: 3,
    Whatever.withdraw: 2,
    Whatever.ack: 1,
    Whatever.foreign_get: 1,
}


@pytest.mark.parametrize("seed", range(23, 31))  # in each of them all of that happens
async def test_places_are_those_of_the_line_whatever_happens(small: Desk, seed: int) -> None:
    whatever = Whatever(small, random.Random(seed))
    await small.create(max_attempts=0)
    most_blocks = most_holes = 0
    for what in whatever.chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=250):
        await what(whatever)
        assert await small.is_sound()
        returned = cast(list[tuple[bytes, float]], small.raw.zrange(small.key("returned"), 0, -1, withscores=True))
        blocks = {math.ceil(-order / BLOCK) if order < 0 else 0 for _, order in returned}
        most_blocks = max(most_blocks, len(blocks))
        if len(blocks) > 1:
            most_holes = max(most_holes, whatever.holes())
    assert most_blocks > 1
    assert most_holes > 0
    assert whatever.filled > 0
