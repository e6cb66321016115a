"""Taking messages out of long lines: what stands far from both ends stays in the list as a hole until the head is
near, and nobody ever sees it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from headwayd.domain.model import Peeked
from headwayd.store import frames
from integration.desk import BUDGET_S, Desk

LENGTH = 30_000
NEAR = 4_096  # as lua/include/reach.lua has it


async def fill(desk: Desk, length: int = LENGTH) -> None:
    for start in range(0, length, 1_000):
        numbers = range(start, min(start + 1_000, length))
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
