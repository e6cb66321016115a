"""Quotas of a namespace: what would exceed one is refused, says which, and does nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path

import grpc
import httpx
import pytest

from harness import ServiceProcess, eventually, refused
from harness.errors import error_of
from harness.scraping import Scraped
from security.callers import OTHERS, PLAIN, TEAM, line_of, write_callers
from wire.calls import ACKED, ALREADY_ACKED, GONE, RESOURCE_EXHAUSTED, Line, Message, leases, payloads
from wire.conditions import leased
from wire.flows import Consuming, Producing
from wire.streams import Standing

pytestmark = pytest.mark.any_store

LOOK_S = 1.5  # until the next call makes the service look again at what lies in the store

Limited = Callable[..., AbstractAsyncContextManager[tuple[Line, Line]]]


@pytest.fixture
def limited(
    start: Callable[..., ServiceProcess], connect: Callable[[str], grpc.aio.Channel], short_dir: Path, name: str
) -> Limited:
    """Queues of an admin of the namespace `team`, which has these quotas, and of one of another, which has none."""

    @asynccontextmanager
    async def serve(**quotas: int) -> AsyncIterator[tuple[Line, Line]]:
        file = write_callers(short_dir / "callers.toml", [TEAM["admin"], OTHERS["admin"]], {"team": quotas})
        service = start(HEADWAY_AUTH_FILE=str(file), PRESSURE_PREFIX=f"p-{name}")
        async with connect(service.address) as channel:
            lines = [line_of(channel, callers["admin"], name) for callers in (TEAM, OTHERS)]
            yield lines[0], lines[1]

    return serve


@contextmanager
def exceeded(quota: str, limit: int) -> Iterator[None]:
    """Expects the call inside to be refused for this quota."""
    with refused("QUOTA_EXCEEDED", RESOURCE_EXHAUSTED) as said:
        yield
    assert said.metadata == {"quota": quota, "limit": str(limit)}
    assert said.quotas == [quota]
    assert said.retry_delay is not None


async def test_queues(limited: Limited) -> None:
    async with limited(max_queues=2) as (mine, yours):
        await mine.create()
        second, third = (Line(mine.stub, f"{mine.name}-{number}", mine.admin) for number in (2, 3))
        await second.create()
        with exceeded("queues", 2):
            await third.create()
        assert not (await second.create()).created  # one that stands is none more
        await yours.create()
        await second.delete()
        await third.create()


async def test_messages_in_every_state(limited: Limited) -> None:
    async with limited(max_messages=4) as (mine, yours):
        await mine.create()
        await mine.put(b"1", b"2", b"3")
        with exceeded("messages", 4):
            await mine.put(b"4", b"5")
        await mine.put(b"4")
        [held, delayed] = leases(await mine.take(2))
        await mine.delay(delayed, delay_ms=3_600_000)
        with exceeded("messages", 4):
            await mine.put(b"5")
        assert (await mine.counts()).accepted == 4
        await yours.create()
        await yours.put(*[b"x"] * 10)
        await mine.ack(held)

        await eventually_served(lambda: mine.put(b"5"))


async def test_puts_that_wait_for_room_count_as_long_as_they_wait_and_no_longer(limited: Limited) -> None:
    async with limited(max_messages=3) as (mine, _):
        await mine.create(bound=1)
        other = Line(mine.stub, f"{mine.name}-other", mine.admin)
        await other.create()
        await mine.put(b"1")
        for _ in range(5):
            with refused("QUEUE_FULL", RESOURCE_EXHAUSTED):
                await mine.put(b"finds no room")
        waiting = [asyncio.create_task(mine.put(number, wait_ms=60_000)) for number in (b"2", b"3")]
        await eventually(lambda: producers_waiting(mine, 2))
        for _ in range(2):
            with exceeded("messages", 3):
                await other.put(b"4")
            await asyncio.sleep(LOOK_S)
        waiting[1].cancel()
        await eventually(lambda: producers_waiting(mine, 1))
        await eventually_served(lambda: other.put(b"4"))
        await mine.ack(*leases(await mine.take()))
        await waiting[0]
        assert (await mine.counts()).length == 1


async def test_batches_are_put_up_to_the_first_that_exceeds_it_also_if_they_come_together(limited: Limited) -> None:
    async with limited(max_messages=100) as (mine, _):
        await mine.create()
        async with Producing(mine) as stream:
            for size in (1, 38, 60, 60):
                await stream.send(*[b"x"] * size)
            with exceeded("messages", 100):
                await stream.ended()
            assert [answer.batch for answer in stream.seen] == [1, 2, 3]
        assert (await mine.counts()).accepted == 99


async def test_messages_that_are_refused_are_counted_by_their_queue_once(
    start: Callable[..., ServiceProcess], connect: Callable[[str], grpc.aio.Channel], short_dir: Path, name: str
) -> None:
    file = write_callers(short_dir / "callers.toml", [TEAM["admin"], PLAIN["admin"]], {"team": {"max_messages": 5}})
    http = {"HEADWAY_HTTP_LISTEN": "127.0.0.1:0"}
    service = start(HEADWAY_AUTH_FILE=str(file), PRESSURE_PREFIX=f"p-{name}", **http)
    async with connect(service.address) as channel:
        mine = line_of(channel, TEAM["admin"], name)
        await mine.create()
        await mine.put(b"1")
        with exceeded("messages", 5):
            await mine.put(*[b"x"] * 5)
        async with Producing(mine) as stream:
            for size in (1, 1, 10):  # the last two may come together, and have no room as one
                await stream.send(*[b"x"] * size)
            with exceeded("messages", 5):
                await stream.ended()
    token = PLAIN["admin"].token
    async with httpx.AsyncClient(timeout=10) as client:
        told = await client.get(f"{service.addresses[1]}/metrics", headers={"authorization": f"Bearer {token}"})
    counted = Scraped(told.text, is_open=False).by("reason", "puts_refused_total", queue_namespace="team", queue=name)
    assert counted == {"QUOTA_EXCEEDED": 15}


async def producers_waiting(line: Line, count: int) -> bool:
    return (await line.counts()).producers_waiting == count


async def eventually_served(call: Callable[[], Awaitable[object]]) -> None:
    """After the next look of the service."""

    async def served() -> bool:
        try:
            await call()
        except grpc.aio.AioRpcError as error:
            assert error_of(error).reason == "QUOTA_EXCEEDED"
            return False
        return True

    await eventually(served)


async def test_a_stream_that_keeps_standing_counts_for_each_turn(limited: Limited) -> None:
    async with limited(max_leases=1) as (mine, _):
        await mine.create()
        await mine.put(b"1")
        async with Standing(mine, keep_standing=True) as stream:
            await mine.ack(*leases(await stream.granted(1)))
            await asyncio.sleep(LOOK_S)
            with exceeded("leases", 1):  # its next turn may come at any time
                await mine.get(1)
            await mine.put(b"2")
            await mine.ack(*leases(await stream.granted(2)))
        await eventually_served(lambda: mine.get(1))


async def test_bytes(limited: Limited) -> None:
    async with limited(max_bytes=200_000) as (mine, _):
        await mine.create()
        await mine.put(b"x" * 150_000)
        with exceeded("bytes", 200_000):
            await mine.put(b"y" * 100_000)
        [held] = leases(await mine.take())  # leased messages take memory, too
        with exceeded("bytes", 200_000):
            await mine.put(b"y" * 100_000)
        await mine.ack(held)
        await eventually_served(lambda: mine.put(b"y" * 100_000))


async def test_bytes_of_messages_that_were_leased_together(limited: Limited) -> None:
    async with limited(max_bytes=200_000) as (mine, _):
        await mine.create()
        await mine.put(*[b"x" * 1_500] * 100)
        assert len(leases(await mine.take(100))) == 100
        await asyncio.sleep(LOOK_S)
        with exceeded("bytes", 200_000):
            await mine.put(b"y" * 100_000)


async def test_leases_of_calls_and_streams(limited: Limited) -> None:
    async with limited(max_leases=3) as (mine, _):
        await mine.create()
        await mine.put(*[b"x"] * 10)
        held = leases(await mine.take(2))
        with exceeded("leases", 3):
            await mine.get(2)
        with exceeded("leases", 3):
            async with Consuming(mine, 2) as stream:
                await stream.ended()
        with exceeded("leases", 3):
            await Standing(mine, max_messages=2).until(lambda _: False)
        assert (await mine.counts()).leased == 2
        async with Consuming(mine, 1) as stream:
            await stream.taken(1)
            with exceeded("leases", 3):
                await mine.get(1)
            with exceeded("leases", 3):
                await stream.credit(2)
                await stream.ended()
        await mine.ack(*held)
        await eventually_served(lambda: mine.get(3))


async def test_who_settles_at_the_quota_may_take_as_many_and_no_more(limited: Limited) -> None:
    async with limited(max_leases=3) as (mine, _):
        await mine.create()
        await mine.put(*[b"x"] * 60)
        held = leases(await mine.take(3))
        for _ in range(5):
            answer = await mine.get(1, ack=held[:1], attempt_id=f"attempt-{held[0]}")
            assert [result.settled for result in answer.settled] == [ACKED]
            held = [*held[1:], *leases(answer.deliveries)]
            assert len(held) == 3
        assert len((await mine.get(2, ack=held[:2])).deliveries) == 2
        assert (await mine.counts()).leased == 3
        with exceeded("leases", 3):
            await mine.get(3, ack=held[2:])
        assert await mine.ack(held[2]) == [ACKED]


@pytest.mark.parametrize("wait_ms", [0, 1_000])
async def test_leases_that_do_not_end_are_exchanged_for_nothing(limited: Limited, wait_ms: int) -> None:
    async with limited(max_leases=3) as (mine, _):
        await mine.create()
        await mine.put(*[b"x"] * 60)
        first, *held = leases(await mine.take(3))
        held += leases((await mine.get(1, ack=[first])).deliveries)
        for named in (["no lease"] * 50, [f"none-{n}" for n in range(50)], [first] * 50):
            with suppress(grpc.aio.AioRpcError):
                answer = await mine.get(50, ack=named, wait_ms=wait_ms)
                assert not answer.deliveries
                assert len(answer.settled) == 50
            assert (await mine.counts()).leased == 3
        answer = await mine.get(50, ack=[*held[:2], *[f"none-{n}" for n in range(48)]], wait_ms=wait_ms)
        assert [delivery.attempt for delivery in answer.deliveries] == [1, 1]
        counts = await mine.counts()
        assert (counts.leased, counts.acked, counts.length) == (3, 3, 54)
        assert [delivery.attempt for delivery in (await mine.get(1, ack=held[2:])).deliveries] == [1]


async def test_a_get_that_is_made_again_at_the_quota_gives_the_same_leases_once_more(limited: Limited) -> None:
    async with limited(max_leases=3) as (mine, _):
        await mine.create()
        await mine.put(*[b"x"] * 10)
        held = leases(await mine.take(3))
        lost = leases((await mine.get(3, ack=held, attempt_id="lost")).deliveries)
        assert len(lost) == 3
        again = await mine.get(3, ack=held, attempt_id="lost")
        assert leases(again.deliveries) == lost
        assert [result.settled for result in again.settled] == [ALREADY_ACKED] * 3
        assert await mine.ack(*lost) == [ACKED] * 3
        assert (await mine.counts()).length == 4


@pytest.mark.parametrize("wait_ms", [0, 1_000])
async def test_leases_that_have_lapsed_are_exchanged_for_nothing(limited: Limited, wait_ms: int) -> None:
    async with limited(max_leases=3) as (mine, _):
        await mine.create()
        other = Line(mine.stub, f"{mine.name}-other", mine.admin)
        await other.create()
        await mine.put(*[b"x"] * 10)
        await other.put(*[b"x"] * 3)
        lapsed = leases(await mine.take(3, lease_ms=100))
        await eventually(lambda: leased(mine, 0))
        await eventually_served(lambda: other.take(3))
        answer = await mine.get(3, ack=lapsed, wait_ms=wait_ms)
        assert [result.settled for result in answer.settled] == [ACKED] * 3
        assert not answer.deliveries
        assert ((await mine.counts()).leased, (await other.counts()).leased) == (0, 3)


@pytest.mark.parametrize("wait_ms", [0, 60_000])
async def test_a_poller_that_the_quota_gives_nothing_keeps_its_place_and_is_told_it(
    limited: Limited, wait_ms: int
) -> None:
    async with limited(max_leases=2) as (mine, _):
        await mine.create()
        other = Line(mine.stub, f"{mine.name}-other", mine.admin)
        await other.create()
        await other.put(b"1", b"2")
        place = (await mine.get(1, stand=True)).standing.place
        assert (await mine.get(1, stand=True)).standing.position == 2  # another poller, behind it
        held = leases(await other.take(2))
        await mine.put(b"mine")
        answer = await mine.get(1, stand=True, place=place, ack=["ends nothing"], wait_ms=wait_ms)
        assert [result.settled for result in answer.settled] == [GONE]
        assert (answer.standing.place, answer.standing.position) == (place, 1)
        assert not answer.deliveries
        await other.ack(*held)

        async def is_served() -> bool:
            try:
                return payloads((await mine.get(1, stand=True, place=place)).deliveries) == [b"mine"]
            except grpc.aio.AioRpcError as error:
                assert error_of(error).reason == "QUOTA_EXCEEDED"  # until the service looks again
                return False

        await eventually(is_served)


async def test_below_the_quota_it_does_not_matter_what_leases_are_named(limited: Limited) -> None:
    async with limited(max_leases=3) as (mine, _):
        await mine.create()
        await mine.put(*[b"x"] * 60)
        assert len((await mine.get(2, ack=["no lease", "none either"])).deliveries) == 2


async def test_a_stream_that_extends_its_leases_has_them_still(limited: Limited) -> None:
    async with limited(max_leases=4) as (mine, _):
        await mine.create()
        await mine.put(*[b"x"] * 10, Message(payload=b"named", id="named"))
        async with Consuming(mine, 2) as stream:
            await stream.taken(2)
            held = leases(stream.deliveries)
            for told in range(2, 8, 2):
                await stream.extend(*held)
                await eventually(partial(has, stream, told))
            await stream.delay(message_ids=["named"], delay_ms=3_600_000)
            await eventually(partial(has, stream, 7))
            assert len((await mine.get(2)).deliveries) == 2


async def test_a_stream_that_settles_leases_of_others_may_be_given_no_more(limited: Limited) -> None:
    async with limited(max_leases=3) as (mine, _):
        await mine.create()
        await mine.put(b"1", b"2", b"3")
        async with Consuming(mine, 1) as stream:
            await stream.taken(1)
            others = leases((await mine.get(2)).deliveries)
            await stream.ack(*others)
            await eventually(partial(has, stream, 2))
            await mine.put(b"4", b"5")
            await eventually_served(lambda: mine.get(2))


async def test_a_stream_whose_leases_have_lapsed_may_be_given_as_many_again(limited: Limited) -> None:
    async with limited(max_leases=1) as (mine, _):
        await mine.create()
        await mine.put(b"1")
        async with Consuming(mine, 1, lease_ms=500) as stream:

            async def is_acked() -> bool:
                await stream.ack(stream.deliveries[-1].lease)
                return any(result.settled == ACKED for result in stream.settled)

            await stream.taken(3)  # it came again each time that its lease had lapsed
            await eventually(is_acked)
            await asyncio.sleep(LOOK_S)
            with exceeded("leases", 1):  # the stream may be given one at any time
                await mine.get(1)


async def has(stream: Consuming, results: int) -> bool:
    return len(stream.settled) >= results


async def test_streams_of_one_process(limited: Limited) -> None:
    async with limited(max_streams=1) as (mine, yours):
        await mine.create()
        await yours.create()
        async with Consuming(mine, 1):
            with exceeded("streams", 1):
                await Standing(mine).until(lambda _: False)
            async with Consuming(yours, 1), Consuming(yours, 1):
                pass
        await eventually_served(lambda: Standing(mine).until(bool))


async def test_calls_per_second_but_not_those_that_settle(limited: Limited) -> None:
    async with limited(max_calls_per_second=20) as (mine, _):
        await mine.create()
        await mine.put(b"x")
        [held] = leases(await mine.take())
        served = 0
        with refused("QUOTA_EXCEEDED", RESOURCE_EXHAUSTED) as said:
            for _ in range(10_000):
                await mine.describe()
                served += 1
        assert said.metadata == {"quota": "calls_per_second", "limit": "20"}
        assert said.retry_delay is not None
        assert served >= 10
        await mine.extend(held)
        await mine.ack(held)
        await eventually_served(mine.describe)
