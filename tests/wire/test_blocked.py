"""WatchPosition with `blocked`: where a producer's Put stands among those that wait for room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest

from harness import ServiceProcess, StoreServer, eventually, refused
from headway.v1 import queue_service_pb2
from wire.calls import INVALID_ARGUMENT, NOT_FOUND, SLACK_S, Keys, Line, line_at, now_ms, payloads
from wire.conditions import producers_wait
from wire.operators import check
from wire.watches import DELETED, DRAINED, WAITING, Watched, watching_blocked

Connect = Callable[[str], grpc.aio.Channel]
HOSTILE = ["x" * 200, "ä" * 100, "a#1", "\0", "%s\r\n*1", "x:blocked", "1", "@x", "'"]
NO_STATE = queue_service_pb2.STATE_UNSPECIFIED


@pytest.fixture
def second(store_server: StoreServer, prefix: str, make_service: Callable[..., ServiceProcess]) -> ServiceProcess:
    """Another process on the same store."""
    return make_service(HEADWAY_REDIS_URL=store_server.url, PRESSURE_PREFIX=prefix)


@pytest.fixture
async def other(line: Line, second: ServiceProcess, connect: Connect) -> AsyncIterator[Line]:
    """The same queue through that process."""
    async with line_at(second.address, line.name, connect) as opened:
        yield opened


async def blocked(line: Line, producer: str, payload: bytes, *, behind: int) -> asyncio.Task[object]:
    """A Put that waits for room, behind so many others."""
    waiting: asyncio.Task[object] = asyncio.create_task(line.put(payload, wait_ms=60_000, producer=producer))
    await eventually(lambda: producers_wait(line, behind + 1))
    return waiting


async def full(line: Line) -> None:
    await line.create(bound=1)
    await line.put(b"first")


def told_positions(watched: Watched) -> list[int]:
    return [told.position.position for told in watched.told if told.HasField("position")]


def at(position: int) -> Callable[[queue_service_pb2.WatchPositionResponse], bool]:
    return lambda told: told.HasField("position") and told.position.position == position


@asynccontextmanager
async def each_watched(line: Line, *producers: str) -> AsyncIterator[list[Watched]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(watching_blocked(line, producer)) for producer in producers]


async def test_the_first_message_comes_at_once_and_says_that_none_waits(line: Line, keys: Keys) -> None:
    await line.create(bound=3, limit=7)
    before = int(now_ms(keys.client))
    async with watching_blocked(line, "me") as watched:
        told = await watched.next()
        assert told.sequence == 1
        assert before <= told.as_of.ToMilliseconds() <= now_ms(keys.client)
        place = told.position
        assert (place.producer, place.position, place.length, place.limit) == ("me", 0, 0, 7)
        assert place.state == NO_STATE
        assert place.poll_min.ToMilliseconds() == 1_000
        assert place.poll_max.ToMilliseconds() == 11_000


async def test_each_of_three_on_two_processes_sees_its_place_until_it_is_served(line: Line, other: Line) -> None:
    await full(line)
    names = ["a", "b", "c"]
    waiting = [
        await blocked((line, other, line)[index], name, name.encode(), behind=index) for index, name in enumerate(names)
    ]
    async with each_watched(line, *names) as here, each_watched(other, *names) as there:
        for index, watched in enumerate(here + there):
            place = (await watched.next()).position
            rank = index % 3 + 1
            assert (place.producer, place.position, place.length) == (names[index % 3], rank, 3)
            assert (place.state, place.moved_back) == (WAITING, False)
            assert place.poll_min.ToMilliseconds() == 500 + 500 * rank
            assert place.HasField("eta")
            assert not place.eta.known
        served = payloads(await line.take())
        for left in (2, 1, 0):
            async with asyncio.timeout(10):
                await waiting[2 - left]
            for watched in here[2 - left :] + there[2 - left :]:
                told = await watched.next(lambda told, left=left: told.position.length == left)  # type: ignore[misc]
                assert told.position.position == max(names.index(told.position.producer) - 2 + left, 0)
            served += payloads(await line.take())
        assert served == [b"first", b"a", b"b", b"c"]
        for index, watched in enumerate(here + there):
            assert told_positions(watched) == list(range(index % 3 + 1, -1, -1))
            assert [told.sequence for told in watched.told] == list(range(1, len(watched.told) + 1))
            assert not watched.has_ended
    assert not (await check(line)).findings


async def test_a_put_that_comes_later_is_seen_and_of_two_the_one_that_has_waited_longest(line: Line) -> None:
    await full(line)
    async with watching_blocked(line, "me") as watched:
        await watched.next(at(0))
        others = await blocked(line, "other", b"other", behind=0)
        mine = [await blocked(line, "me", b"mine", behind=1), await blocked(line, "me", b"mine too", behind=2)]
        assert (await watched.next(at(2))).position.state == WAITING
        for taken in (b"first", b"other"):
            assert payloads(await line.take(wait_ms=10_000)) == [taken]
        await asyncio.wait_for(mine[0], 10)
        await watched.next(lambda told: told.position.length == 1 and told.position.position == 1)
        assert payloads(await line.take()) == [b"mine"]
        await asyncio.wait_for(mine[1], 10)
        told = await watched.next(at(0))
        assert told.position.state == NO_STATE
        assert not any(one.position.moved_back for one in watched.told)
        await others


async def test_a_put_without_a_name_counts_and_leaves_nothing_to_find_it_by(line: Line, keys: Keys) -> None:
    await full(line)
    nameless = await blocked(line, "", b"nameless", behind=0)
    assert not keys.client.exists(keys["x:blocked"])
    mine = await blocked(line, "me", b"mine", behind=1)
    assert keys.client.hvals(keys["x:blocked"]) == [b"me"]
    async with watching_blocked(line, "me") as watched:
        await watched.next(at(2))
        await line.take()
        await asyncio.wait_for(nameless, 10)
        await watched.next(at(1))
        await line.take()
        await asyncio.wait_for(mine, 10)
        await watched.next(at(0))
    assert not keys.client.exists(keys["x:blocked"], keys["x:producers"])


async def test_a_caller_that_vanishes_moves_up_those_behind(
    line: Line, connect: Connect, service: ServiceProcess
) -> None:
    await full(line)
    async with line_at(service.address, line.name, connect) as gone:
        vanishing = await blocked(gone, "gone", b"gone", behind=0)
        mine = await blocked(line, "me", b"mine", behind=1)
        async with each_watched(line, "gone", "me") as (first, second):
            await first.next(at(1))
            await second.next(at(2))
            vanishing.cancel()
            await first.next(at(0), within=3)
            await second.next(at(1), within=3)
    mine.cancel()
    await eventually(lambda: producers_wait(line, 0))


async def test_a_put_whose_time_is_up_waits_no_more(line: Line) -> None:
    await full(line)
    async with watching_blocked(line, "me") as watched:
        await watched.next(at(0))
        with refused("QUEUE_FULL"):
            await line.put(b"mine", wait_ms=500, producer="me")
        await watched.next(at(0))
        assert told_positions(watched) == [0, 1, 0]


async def test_those_behind_a_killed_process_move_up(
    line: Line, other: Line, second: ServiceProcess, keys: Keys, figure: Callable[[str, str], None]
) -> None:
    begun = now_ms(keys.client)
    await full(line)
    first = await blocked(line, "first", b"first in line", behind=0)
    dead = [await blocked(other, "dead", b"dead", behind=1), await blocked(other, "", b"dead", behind=2)]
    mine = await blocked(line, "me", b"mine", behind=3)
    async with each_watched(line, "dead", "me", "first") as (theirs, own, firsts):
        await theirs.next(at(2))
        await own.next(at(4))
        # The others look twice a second who lives: it must have been seen to be missed.
        await eventually(lambda: now_ms(keys.client) > begun + 1_000)
        await asyncio.to_thread(second.kill)
        killed = now_ms(keys.client)
        took_ms = (await own.next(at(2))).as_of.ToMilliseconds() - killed
        figure("those behind a killed process's blocked Puts move up", f"{took_ms:.0f} ms")
        assert took_ms < 5_000  # 3 s, and the machine does other things, too
        await theirs.next(at(0))
        assert set(told_positions(firsts)) == {1}
    await asyncio.wait(dead)
    for payload in (b"first", b"first in line", b"mine"):
        assert payloads(await line.take(wait_ms=10_000)) == [payload]
    await asyncio.gather(first, mine)
    assert not (await check(line)).findings


async def test_a_process_that_was_not_heard_takes_its_places_anew(line: Line, other: Line, keys: Keys) -> None:
    await full(line)
    names = ["a", "b", "c", "d"]
    waiting = [
        await blocked((line, other)[index % 2], name, name.encode(), behind=index) for index, name in enumerate(names)
    ]
    nameless = await blocked(other, "", b"nameless", behind=4)
    before = keys.client.zrange(keys["x:producers"], 0, -1, withscores=True)
    async with each_watched(line, *names) as watched:
        for index, one in enumerate(watched):
            await one.next(at(index + 1))
        keys.client.delete(keys["x:producers"], keys["x:blocked"])  # as others do who do not hear of them
        for one in watched[2:]:  # the first of each process is tried now and then, and may be back before anybody looks
            await one.next(at(0))
        keys.client.client_kill_filter(_type="pubsub")
        for index, one in enumerate(watched):
            await eventually(lambda: told_positions(one)[-1] == index + 1, within=SLACK_S)  # noqa: B023
    assert keys.client.zrange(keys["x:producers"], 0, -1, withscores=True) == before
    assert not (await check(line)).findings
    for payload in (b"first", b"a", b"b", b"c", b"d", b"nameless"):
        assert payloads(await line.take(wait_ms=10_000)) == [payload]
    await asyncio.gather(*waiting, nameless)
    await eventually(lambda: not keys.client.exists(keys["x:producers"], keys["x:blocked"]))


async def test_a_name_without_a_place_in_line_is_found(line: Line, keys: Keys) -> None:
    await full(line)
    mine = await blocked(line, "me", b"mine", behind=0)
    keys.client.hset(keys["x:blocked"], "stranger", "me")
    async with watching_blocked(line, "me") as watched:
        assert (await watched.next()).position.position == 1
    [finding] = (await check(line)).findings
    assert ":x:blocked" in finding
    assert "stranger" in finding
    keys.client.hdel(keys["x:blocked"], "stranger")
    [waiter] = keys.client.hkeys(keys["x:blocked"])
    keys.client.hset(keys["x:blocked"], waiter, "")
    [finding] = (await check(line)).findings
    assert "without a name" in finding
    mine.cancel()
    await eventually(lambda: producers_wait(line, 0))


async def test_closing_ends_it(line: Line) -> None:
    await full(line)
    mine = await blocked(line, "me", b"mine", behind=0)
    async with watching_blocked(line, "me") as watched:
        await watched.next(at(1))
        await line.close()
        ended = await watched.finished()
        assert (ended.outcome, ended.id) == (DRAINED, "")
        await watched.end()
        with refused("QUEUE_CLOSED"):
            await mine
    async with watching_blocked(line, "me") as late:
        assert [told.finished.outcome for told in await late.end()] == [DRAINED]


@pytest.mark.parametrize("is_made_anew", [False, True])
async def test_deletion_ends_it(line: Line, is_made_anew: bool) -> None:
    await full(line)
    mine = await blocked(line, "me", b"mine", behind=0)
    async with watching_blocked(line, "me") as watched:
        await watched.next(at(1))
        await line.delete()
        if is_made_anew:
            await line.create()
        told = (await watched.end())[-1]
        assert told.finished.outcome == DELETED
        with refused("QUEUE_DELETED"):
            await mine


async def test_an_unknown_queue_is_not_found(line: Line) -> None:
    async with watching_blocked(line, "me") as watched:
        with refused("QUEUE_NOT_FOUND", NOT_FOUND):
            await watched.end()
        assert not watched.told


@pytest.mark.parametrize("producer", ["", "x" * 201, "ä" * 101], ids=["empty", "long", "long in bytes"])
async def test_a_name_that_no_put_can_have_is_refused(line: Line, producer: str) -> None:
    await line.create()
    async with watching_blocked(line, producer) as watched:
        with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
            await watched.end()
        assert said.metadata["field"] == "blocked.producer"


@pytest.mark.parametrize("producer", HOSTILE, ids=ascii)
async def test_any_name_that_a_put_can_have_is_found(line: Line, producer: str) -> None:
    await full(line)
    mine = await blocked(line, producer, b"mine", behind=0)
    more = await blocked(line, producer[:50] + "+", b"more", behind=1)
    async with watching_blocked(line, producer) as watched:
        assert (await watched.next()).position.position == 1
        assert not (await check(line)).findings
    for waiting in (mine, more):
        waiting.cancel()
    await eventually(lambda: producers_wait(line, 0))


async def test_watching_takes_no_place_and_wakes_nobody_wrongly(line: Line) -> None:
    await full(line)
    async with each_watched(line, *["me"] * 20) as watched:
        for one in watched:
            await one.next(at(0))
        assert (await line.describe()).counts.producers_waiting == 0
        mine = await blocked(line, "me", b"mine", behind=0)
        for one in watched:
            await one.next(at(1))
        await line.take()
        await asyncio.wait_for(mine, 10)
        for one in watched:
            await one.next(at(0))


async def test_far_places_are_told_in_steps_and_near_ones_all(line: Line) -> None:
    await line.create(bound=1)
    await line.put(b"first")
    waiting = [await blocked(line, f"p{number}", b"%d" % number, behind=number) for number in range(30)]
    async with watching_blocked(line, "p29") as watched:
        await watched.next(at(30))
        for number in range(12):  # 18 are left, so it has come among the first 20
            assert (await line.take(wait_ms=10_000))[0].message.payload
            await asyncio.wait_for(waiting[number], 10)
        await watched.next(at(18))
        far = [position for position in told_positions(watched) if position > 20]
        assert far == [30]  # poll_min is 15.5 s there
    for one in waiting:
        one.cancel()
    await asyncio.wait(waiting)
    await eventually(lambda: producers_wait(line, 0))
