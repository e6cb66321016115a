"""Room for large requests: never more than there is, first come, first served, and nothing leaks."""

from __future__ import annotations

import asyncio

import pytest

from headway.v1.queue_service_pb2 import MessageIds, WatchPositionRequest
from headwayd.domain.errors import Overloaded
from headwayd.domain.limits import MAX_ID_BYTES, MAX_WATCHED_IDS
from headwayd.rpc.room import LARGE_BYTES, Room
from headwayd.rpc.watch_requests import kept_bytes, stream_count


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


@pytest.mark.parametrize("count", [90, 1_000, 1_007, MAX_WATCHED_IDS])
def test_watched_ids_take_no_room_however_long_unless_they_count_as_no_more_streams(count: int) -> None:
    ids = [f"{number:0{MAX_ID_BYTES}}" for number in range(count)]
    request = WatchPositionRequest(queue="q", messages=MessageIds(ids=ids))
    size = request.ByteSize()
    assert size >= LARGE_BYTES
    assert kept_bytes(size, stream_count(request)) == 0
    assert kept_bytes(size, 1) == size


def test_what_a_stream_keeps_beside_watched_ids_takes_room_from_16_kib_on() -> None:
    ids = 32 * (MAX_ID_BYTES + 3)  # as two more streams
    assert [kept_bytes(ids + beside, 3) for beside in (LARGE_BYTES - 1, LARGE_BYTES)] == [0, LARGE_BYTES]
