"""Taking messages out of long lines: what stands far from both ends stays in the list as a hole until the head is
near, and nobody ever sees it."""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable

import pytest

from harness import StoreServer
from headwayd.domain.errors import QueueNotFound
from headwayd.domain.model import GetOrder, Peeked
from headwayd.engine.ports import Wait
from headwayd.store import frames
from integration.desk import BUDGET_S, FAR, Desk, desk_at, queue_of

LENGTH = 30_000
NEAR = 4_096  # as lua/include/reach.lua has it
NARROW = 40  # instead of NEAR, so that many holes are soon made
AT_ONCE = 500  # most holes that a Get passes over, as lua/include/due.lua has it; by 64
MORE_COMMANDS = 64  # binary searches'


async def fill(desk: Desk, length: int = LENGTH, *, start: int = 0) -> None:
    for first in range(start, length, 1_000):
        numbers = range(first, min(first + 1_000, length))
        await desk.put(*(b"%d" % n for n in numbers), ids=[f"id-{n}" for n in numbers])


def holes(desk: Desk) -> int:
    return int(desk.raw.zcard(desk.key("holes")))


async def peek(desk: Desk, position: int, count: int = 1) -> list[Peeked]:
    found = await desk.store.peek(
        desk.name, from_position=position, max_messages=count, max_bytes=10**7, budget_s=BUDGET_S
    )
    return list(found)


@pytest.mark.long
async def test_what_is_withdrawn_anywhere_is_never_given_and_all_behind_move_up(desk: Desk) -> None:
    await desk.create()
    await fill(desk)
    left = list(range(LENGTH))
    chosen = random.Random(7).sample(left, 600) + list(range(15_000, 15_050)) + [0, 1, LENGTH - 1]
    chosen = list(dict.fromkeys(chosen))
    for start in range(0, len(chosen), 100):
        names = [f"id-{n}" for n in chosen[start : start + 100]]
        assert await desk.withdraw(*names) == [""] * len(names)
    gone = set(chosen)
    left = [n for n in left if n not in gone]
    assert holes(desk) > 300
    assert (await desk.counts()).length == len(left)
    assert await desk.is_sound()
    for position in (1, 2, 5_000, 14_900, 15_100, len(left)):
        [seen] = await peek(desk, position)
        assert (seen.payload, seen.position) == (b"%d" % left[position - 1], position)
    order: list[bytes] = []
    while len(order) < len(left):
        taken = await desk.take(900)
        order += [d.payload for d in taken]
        await desk.ack(*(d.lease for d in taken))
    assert order == [b"%d" % n for n in left]
    assert (await desk.counts()).length == holes(desk) == 0
    assert await desk.is_sound()


async def test_foreign_clients_are_never_given_what_was_withdrawn_long_before(desk: Desk) -> None:
    await desk.create()
    await fill(desk, 3 * NEAR)
    middle = range(NEAR + 100, NEAR + 200)
    await desk.withdraw(*(f"id-{n}" for n in middle))
    assert holes(desk) == 100
    seen: list[bytes] = []
    for n in range(NEAR + 300):
        seen.append(frames.read(desk.foreign_get() or b"").payload)
        if n % 500 == 0:  # our own steps come now and then, the sweeper's at the latest
            await desk.sweep()
    expected = [n for n in range(3 * NEAR) if n not in middle][: len(seen)]
    assert seen == [b"%d" % n for n in expected]
    assert (await desk.counts()).taken_by_foreign == len(seen)
    assert await desk.is_sound()


async def test_room_is_made_wherever_a_message_leaves(desk: Desk) -> None:
    await desk.create(bound=3 * NEAR)
    await fill(desk, 3 * NEAR)
    assert len((await desk.put(b"more")).outcomes) == 0
    assert not desk.raw.exists(desk.key("not_full"))
    await desk.withdraw(f"id-{3 * NEAR // 2}")
    assert holes(desk) == 1
    assert desk.raw.llen(desk.key("not_full")) == 1
    assert len((await desk.put(b"more", b"too many")).outcomes) == 1
    assert not desk.raw.exists(desk.key("not_full"))
    assert await desk.is_sound()


async def test_withdrawing_costs_much_the_same_at_any_depth(desk: Desk, figure: Callable[[str, object], None]) -> None:
    await desk.create()
    await fill(desk)

    async def seconds(numbers: range) -> float:
        began = time.perf_counter()
        for n in numbers:
            await desk.withdraw(f"id-{n}")
        return (time.perf_counter() - began) / len(numbers)

    near, deep = await seconds(range(10, 110)), await seconds(range(LENGTH // 2, LENGTH // 2 + 100))
    figure("withdraw one of 30,000, near the head / in the middle", f"{near * 1e6:.0f} / {deep * 1e6:.0f} µs")
    assert holes(desk) == 100


# -- a long run of withdrawn messages in the line ----------------------------------------------------------------------


@pytest.fixture
async def narrow(store_server: StoreServer, request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    reach = f"local NEAR = {NARROW}\nlocal MOST_MOVED = {NARROW}\n{FAR}"
    async with desk_at(store_server, queue_of(request), reach=reach) as made:
        yield made


@pytest.fixture
async def other(narrow: Desk) -> AsyncIterator[Desk]:
    """A second queue, to compare with."""
    made = Desk(narrow.store, narrow.raw, f"{narrow.name}-other")
    yield made
    with contextlib.suppress(QueueNotFound):
        await made.store.delete(made.name, budget_s=BUDGET_S)


async def with_a_run(
    desk: Desk, count: int, *, first: int = 100, came_back: bool = False, at_ms: tuple[int, int, int] = (0, 0, 0)
) -> None:
    """Some that wait first, so many that were withdrawn, and a hundred that wait, each put at its time; if they
    `came_back` all had been leased before."""
    await desk.create()
    parts = (0, first, first + count, length := first + count + 100)
    for ms, (start, stop) in zip(at_ms, itertools.pairwise(parts), strict=True):
        desk.at(ms)
        await fill(desk, stop, start=start)
    if came_back:
        await desk.put(b"behind")
        taken = [one for _ in range(0, length, 500) for one in await desk.take(min(500, length))]
        for end in range(len(taken), 0, -500):
            await desk.store.release(
                desk.name, [one.lease for one in taken[max(end - 500, 0) : end]], budget_s=BUDGET_S
            )
        assert (await desk.counts()).length == length + 1
    for start in range(first, first + count, 500):
        await desk.withdraw(*(f"id-{n}" for n in range(start, min(start + 500, first + count))))
    assert holes(desk) > count - 4 * NARROW
    assert await desk.is_sound()


@pytest.mark.parametrize("came_back", [False, True], ids=["new", "returned"])
@pytest.mark.parametrize("first", [100, 10], ids=["in the list", "taken out of it"])
async def test_a_peek_costs_no_more_the_more_were_withdrawn_before_what_it_tells(
    narrow: Desk, other: Desk, first: int, came_back: bool
) -> None:
    async def commands(desk: Desk, count: int) -> int:
        await with_a_run(desk, count, first=first, came_back=came_back)
        for _ in range(0 if first == 100 else 2 * count // NARROW):
            await desk.sweep()  # which takes those out of it that have come near to the head
        assert (holes(desk) == 0) is (first != 100)
        before = desk.commands()
        seen = [*await peek(desk, 6, 100), *await peek(desk, first + 1, 1), *await peek(desk, first + 100, 10)]
        given = desk.commands() - before
        waiting = [b"%d" % n for n in [*range(first), *range(first + count, first + count + 100)]]
        waiting += [b"behind"] * came_back
        positions = [*range(6, 106), first + 1, *range(first + 100, len(waiting) + 1)]
        assert [(one.position, one.payload) for one in seen] == [(at, waiting[at - 1]) for at in positions]
        return given

    few = await commands(narrow, 300)
    assert await commands(other, 2_000) <= few + MORE_COMMANDS


async def test_a_get_passes_over_so_many_that_were_withdrawn_and_says_that_more_may_be_had(narrow: Desk) -> None:
    await with_a_run(narrow, 4_000)
    assert len(await narrow.take(100)) == 100
    steps, length = 0, int(narrow.raw.llen(narrow.key("q")))
    while True:
        step = await narrow.store.get(GetOrder(narrow.name), budget_s=BUDGET_S)
        before, length = length, int(narrow.raw.llen(narrow.key("q")))
        assert before - length <= AT_ONCE + 64 + NARROW
        if step.deliveries:
            break
        assert (step.wait, step.left) == (Wait.EMPTY, 1)
        steps += 1
    assert steps > 4
    assert step.deliveries[0].payload == b"4100"
    assert (await narrow.counts()).length == 99
    assert await narrow.is_sound()


async def test_a_get_costs_no_more_the_more_were_taken_out_of_the_list_before_what_it_is_given(
    narrow: Desk, other: Desk
) -> None:
    async def commands(desk: Desk, count: int) -> int:
        await desk.create()
        await fill(desk, 10 + count + 100)
        for start in range(10, 10 + count, NARROW // 2):
            await desk.withdraw(*(f"id-{n}" for n in range(start, start + NARROW // 2)))
        assert (holes(desk), int(desk.raw.zcard(desk.key("gaps")))) == (0, count)
        before = desk.commands()
        assert [one.payload for one in await desk.take(11)] == [b"%d" % n for n in [*range(10), count + 10]]
        given = desk.commands() - before
        assert not desk.raw.exists(desk.key("gaps"))
        assert await desk.is_sound()
        return given

    few = await commands(narrow, 1_000)
    assert await commands(other, 8_000) <= few + MORE_COMMANDS // 4


@pytest.mark.parametrize("came_back", [False, True], ids=["new", "returned"])
async def test_the_age_told_is_not_that_of_a_withdrawn_one_that_stands_first(narrow: Desk, came_back: bool) -> None:
    await with_a_run(narrow, 600, first=NARROW + 1, at_ms=(0, 1_000, 5_000), came_back=came_back)
    assert len(await narrow.take(NARROW + 1)) == NARROW + 1
    assert holes(narrow) > 100
    narrow.at(6_000)
    assert (await narrow.counts()).oldest_age_ms == 1_000


async def test_a_description_costs_no_more_the_more_withdrawn_ones_stand_first(narrow: Desk) -> None:
    async def commands(count: int) -> int:
        before = narrow.commands()
        assert (await narrow.counts()).length == 100
        assert holes(narrow) > count
        return narrow.commands() - before

    await with_a_run(narrow, 4_000)
    assert len(await narrow.take(100)) == 100
    many = await commands(3_500)
    while holes(narrow) > 200:
        await narrow.sweep()
    assert many <= await commands(0) + MORE_COMMANDS
