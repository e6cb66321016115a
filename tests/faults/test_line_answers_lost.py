"""Those who stand in line while the store's answers are lost, or none come: nobody is left standing who has gone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import grpc
import pytest

from faults.moments import at_rest, written
from faults.wires import ReplyProxy
from harness import StoreServer, eventually, refused
from headway.v1.queue_pb2 import Poll
from wire.calls import Line, leases, payloads, span
from wire.conditions import consumers_wait, leased
from wire.operators import assert_sound
from wire.streams import Standing

pytestmark = pytest.mark.any_store

LONG_MS = 3_600_000
SOON_S = 5.0


@dataclass
class Two:
    """One queue through two services; the wire between the first and the store can lose answers."""

    shaky: Line
    direct: Line
    proxy: ReplyProxy


@pytest.fixture
def two(shaky: Line, line: Line, proxy: ReplyProxy) -> Two:
    return Two(shaky, line, proxy)


async def lose_the_answer(two: Two, store: StoreServer) -> None:
    """The next answer of the store is lost."""
    await at_rest(store)
    two.proxy.lost_answers = 1


async def test_a_get_whose_answer_was_lost_is_not_left_standing(two: Two, fresh_store_server: StoreServer) -> None:
    await two.shaky.create()
    await lose_the_answer(two, fresh_store_server)
    with refused("OUTCOME_UNKNOWN"):
        await two.shaky.get(wait_ms=10_000)
    await eventually(lambda: consumers_wait(two.direct, 0), within=SOON_S)


async def test_what_a_stream_was_granted_by_an_answer_that_was_lost_is_given_back(
    two: Two, fresh_store_server: StoreServer
) -> None:
    """Only the store knows of that lease, and whose it is."""
    await two.shaky.create(lease=span(LONG_MS))
    await two.shaky.put(b"1")
    await lose_the_answer(two, fresh_store_server)
    lost = Standing(two.shaky)
    assert await lost.ended() is grpc.StatusCode.UNAVAILABLE
    again = await two.direct.take_one(wait_ms=SOON_S * 1_000)
    assert (again.message.payload, again.attempt) == (b"1", 1)
    assert (await two.direct.counts()).consumers_waiting == 0
    await assert_sound(two.direct)


async def test_a_stream_that_comes_back_when_the_answer_is_lost_may_come_back_once_more(
    two: Two, fresh_store_server: StoreServer
) -> None:
    await two.shaky.create(place_grace=span(60_000))
    first = Standing(two.shaky)
    await first.position(1)
    async with Standing(two.direct) as second:
        await second.position(2)
        await first.end()
        await eventually(lambda: consumers_wait(two.direct, 2))
        await lose_the_answer(two, fresh_store_server)
        lost = Standing(two.shaky, place=first.place)
        assert await lost.ended() is grpc.StatusCode.UNAVAILABLE

        async def come_back() -> bool:
            async with Standing(two.shaky, place=first.place) as again:
                return again.positions == [1]

        await eventually(lambda: may(come_back), within=SOON_S)


async def may(attempt: object) -> bool:
    """Whether it is possible now."""
    try:
        return bool(await attempt())  # type: ignore[operator]
    except grpc.aio.AioRpcError:
        return False


async def test_a_poll_whose_answer_was_lost_keeps_its_place(two: Two, fresh_store_server: StoreServer) -> None:
    await two.shaky.create(poll=Poll(base=span(10), per_position=span(0), max=span(10), tolerance=span(10_000)))
    first = (await two.shaky.get(stand=True)).standing
    await two.direct.get(stand=True)
    await lose_the_answer(two, fresh_store_server)
    with refused("OUTCOME_UNKNOWN"):
        await two.shaky.get(stand=True, place=first.place, wait_ms=2_000)
    await eventually(lambda: consumers_wait(two.direct, 2), within=SOON_S)
    await two.direct.put(b"1")

    async def is_served() -> bool:
        answer = await two.direct.get(stand=True, place=first.place)
        return payloads(answer.deliveries) == [b"1"]

    await eventually(lambda: may(is_served), within=SOON_S)


@pytest.mark.parametrize("away", ["killed", "silent"])
async def test_who_leaves_while_the_store_is_away_has_left_when_it_is_back(
    two: Two, fresh_store_server: StoreServer, away: str
) -> None:
    """Places and leases, of streams and of a waiting Get, on a service that goes on."""
    line = two.direct
    await line.create(lease=span(LONG_MS))
    await line.put(b"1")
    holder = Standing(line)
    await holder.granted()
    waiter = Standing(line)
    await waiter.position(1)
    stays = Standing(two.shaky)
    await stays.position(2)
    get = asyncio.create_task(line.get(wait_ms=60_000))
    await eventually(lambda: consumers_wait(line, 3))
    await at_rest(fresh_store_server)
    await written(fresh_store_server)
    if away == "killed":
        fresh_store_server.kill()
    else:
        fresh_store_server.pause()
    await holder.end()
    await waiter.end()
    get.cancel()
    await asyncio.sleep(4)  # that long nobody can tell the store
    if away == "killed":
        await asyncio.to_thread(fresh_store_server.restart)
    else:
        fresh_store_server.resume()
    assert [one.attempt for one in await stays.granted()] == [1]
    await line.ack(*leases(stays.turns[0]))
    assert await stays.ended() is grpc.StatusCode.OK
    await eventually(lambda: consumers_wait(line, 0), within=SOON_S)
    assert await leased(line, 0)
    await assert_sound(line)
