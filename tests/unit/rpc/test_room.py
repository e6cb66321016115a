"""Room for large requests: never more than there is, first come, first served, and nothing leaks."""

from __future__ import annotations

import asyncio

import pytest

from headwayd.domain.errors import Overloaded
from headwayd.rpc.room import Room


async def soon(*tasks: asyncio.Task[None]) -> list[bool]:
    """Which of them are done when nothing more happens by itself."""
    for _ in range(5):
        await asyncio.sleep(0)
    return [task.done() for task in tasks]


def test_what_fits_is_taken_and_what_does_not_is_refused_with_its_limit() -> None:
    room = Room(100)
    room.take(60)
    room.take(40)
    with pytest.raises(Overloaded) as caught:
        room.take(1)
    assert caught.value.metadata == {"limit": "max_running_bytes"}
    room.give(40)
    room.take(40)
    assert room.taken == 100


async def test_those_who_wait_have_their_turn_in_order_and_nobody_overtakes() -> None:
    room = Room(100)
    room.take(100)
    large, small = (asyncio.create_task(room.wait(size)) for size in (80, 10))
    assert await soon(large, small) == [False, False]
    room.give(50)
    assert await soon(large, small) == [False, False]
    with pytest.raises(Overloaded):
        room.take(1)
    room.give(50)
    assert await soon(large, small) == [True, True]
    assert room.taken == 90


async def test_who_leaves_while_waiting_takes_nothing_and_lets_the_next_one_in() -> None:
    room = Room(100)
    room.take(50)
    large, small = (asyncio.create_task(room.wait(size)) for size in (80, 10))
    await soon()
    large.cancel()
    assert await soon(large, small) == [True, True]
    assert room.taken == 60


async def test_who_leaves_as_its_turn_comes_gives_it_back() -> None:
    room = Room(100)
    room.take(100)
    leaving, staying = (asyncio.create_task(room.wait(60)) for _ in range(2))
    await soon()
    room.give(100)
    leaving.cancel()
    assert await soon(leaving, staying) == [True, True]
    assert (leaving.cancelled(), room.taken) == (True, 60)
