"""Redrive: the dead go back into a line, none lost, none twice, and one can watch and stop it."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable

import grpc
import pytest

from harness import ServiceProcess, StoreServer, eventually, refused
from headway.v1 import admin_service_pb2, queue_pb2
from wire.calls import ACKED, INVALID_ARGUMENT, SLACK_S, UNAVAILABLE, Line, Message, leases, line_at, payloads, span
from wire.conditions import consumers_wait, has_dead
from wire.operators import ONE_ATTEMPT, admin_of, all_dead, assert_sound, bury, fail, numbered, redrive, with_dead

# All, and by id.


async def test_all_the_dead_join_the_tail_in_the_order_they_died(line: Line) -> None:
    await with_dead(line, 5)
    await line.put(b"waits")
    told = await redrive(line)
    assert (told[-1].redriven, told[-1].remaining, list(told[-1].not_found_ids)) == (5, 0, [])
    counts = await line.counts()
    assert (counts.dead, counts.length, counts.accepted, counts.withdrawn) == (0, 6, 6, 0)
    deliveries = await line.take(6)
    assert payloads(deliveries) == [b"waits", b"0", b"1", b"2", b"3", b"4"]
    assert [delivery.attempt for delivery in deliveries] == [1] * 6
    assert len({delivery.ticket for delivery in deliveries}) == 6
    assert await line.ack(*leases(deliveries)) == [ACKED] * 6
    await assert_sound(line)


async def test_a_message_keeps_its_id_body_put_time_and_last_error_and_loses_its_failures(line: Line) -> None:
    await line.create(retry=queue_pb2.Retry(max_attempts=3))
    await line.put(Message(id="a", payload=b"body", headers={"h": "1"}))
    for _ in range(3):
        taken = await line.take_one()
        await line.delay(taken.lease, delay_ms=0, reason="no luck")
    await redrive(line)
    [seen] = await line.peek()
    assert (seen.failures, seen.last_error) == (0, "no luck")
    again = await line.take_one()
    assert (again.message, again.put_at, again.attempt) == (taken.message, taken.put_at, 1)
    for left in (2, 1, 0):
        [result] = await line.delay(again.lease, delay_ms=0)
        assert result.attempts == 3 - left
        if left:
            again = await line.take_one()
    assert (await line.counts()).dead == 1
    await assert_sound(line)


async def test_messages_that_nobody_named_are_put_back(line: Line) -> None:
    await line.create(retry=ONE_ATTEMPT)
    await bury(line, b"bare", Message(payload=b"h", headers={"h": "1"}))
    ids = [dead.message.id for dead in await all_dead(line)]
    [told] = await redrive(line, ids[0])
    assert (told.redriven, told.remaining) == (1, 0)
    await redrive(line)
    deliveries = await line.take(2)
    assert payloads(deliveries) == [b"bare", b"h"]
    assert [delivery.message.id for delivery in deliveries] == ids
    await assert_sound(line)


async def test_by_id_only_those_go_back_and_the_unknown_are_named(line: Line) -> None:
    await with_dead(line, 4)
    await line.put(Message(id="waits"))
    told = await redrive(line, "m2", "nobody", "m0", "waits", "~made-up")
    assert (told[-1].redriven, told[-1].remaining) == (2, 0)
    assert list(told[-1].not_found_ids) == ["nobody", "waits", "~made-up"]
    assert [dead.message.id for dead in await all_dead(line)] == ["m1", "m3"]
    assert sorted(payloads(await line.take(3))) == [b"", b"0", b"2"]
    await assert_sound(line)


async def test_an_id_named_twice_is_put_back_once(line: Line) -> None:
    await with_dead(line, 2)
    told = await redrive(line, "m1", "m1")
    assert (told[-1].redriven, list(told[-1].not_found_ids)) == (1, [])
    assert (await line.counts()).length == 1


async def test_nothing_dead_is_done_at_once(line: Line) -> None:
    await line.create()
    [told] = await redrive(line)
    assert (told.redriven, told.remaining) == (0, 0)


async def test_thousands_go_back_and_progress_is_told(line: Line) -> None:
    await with_dead(line, 3_000)
    told = await redrive(line)
    assert told[0].redriven + told[0].remaining == 3_000
    assert [one.redriven for one in told] == sorted(one.redriven for one in told)
    assert (told[-1].redriven, told[-1].remaining) == (3_000, 0)
    counts = await line.counts()
    assert (counts.dead, counts.length) == (0, 3_000)
    assert payloads(await line.take(1_000)) == [b"%d" % number for number in range(1_000)]
    await assert_sound(line)


async def test_replays_are_counted(line: Line) -> None:
    await with_dead(line, 2)
    for replays in (1, 2, 3):
        await redrive(line, "m0")
        await fail(line, leases(await line.take(1)))
        assert {dead.message.id: dead.replays for dead in await all_dead(line)} == {"m0": replays, "m1": 0}


async def test_what_dies_again_meanwhile_is_not_put_back_again(line: Line) -> None:
    await with_dead(line, 8)
    stop = asyncio.Event()

    async def fail_everything() -> None:
        while not stop.is_set():
            for delivery in (await line.get(10)).deliveries:
                await fail(line, [delivery.lease])

    failing = asyncio.create_task(fail_everything())
    told = await asyncio.wait_for(redrive(line, rate=20), SLACK_S)
    assert told[-1].redriven == 8
    await eventually(lambda: has_dead(line, 8))
    stop.set()
    await failing
    assert [dead.replays for dead in await all_dead(line)] == [1] * 8
    await assert_sound(line)


async def test_an_id_stays_known_while_and_after_it_is_put_back(line: Line) -> None:
    await with_dead(line, 1)
    await redrive(line)
    with refused("DUPLICATE_MESSAGE"):
        await line.put(numbered(0))
    [result] = await line.withdraw("m0")
    assert result.withdrawn


async def test_putting_back_wakes_who_waits(line: Line) -> None:
    await with_dead(line, 1)
    waiting = asyncio.create_task(line.get(wait_ms=20_000))
    await eventually(lambda: consumers_wait(line))
    await redrive(line)
    assert payloads((await asyncio.wait_for(waiting, 10)).deliveries) == [b"0"]


async def test_the_queues_own_bound_is_kept_too(line: Line) -> None:
    await with_dead(line, 3)
    await line.update(bound=1)
    redriving = asyncio.create_task(redrive(line))
    for expected in (b"0", b"1", b"2"):
        taken = await line.take_one(wait_ms=5_000)
        assert taken.message.payload == expected
        assert (await line.counts()).length <= 1
        await line.ack(taken.lease)
    assert (await asyncio.wait_for(redriving, SLACK_S))[-1].redriven == 3


# The rate, and stopping.


async def test_a_rate_is_kept(line: Line) -> None:
    await with_dead(line, 11)
    begun = time.monotonic()
    told = await redrive(line, rate=10)
    assert time.monotonic() - begun >= 0.9
    assert (told[0].redriven, told[0].remaining) == (1, 10)
    assert told[-1].redriven == 11


async def test_who_ends_the_stream_stops_it_and_what_was_put_back_stays(line: Line) -> None:
    await with_dead(line, 50)
    request = admin_service_pb2.RedriveRequest(queue=line.name, rate=10)
    call = admin_of(line).Redrive(request, timeout=SLACK_S)
    told = await anext(aiter(call))
    assert told.redriven >= 1
    call.cancel()
    before = -1

    async def has_stopped() -> bool:
        nonlocal before
        dead = (await line.counts()).dead
        is_same, before = dead == before, dead
        await asyncio.sleep(0.3)  # three steps of a redrive that goes on
        return is_same

    await eventually(has_stopped, within=10)
    counts = await line.counts()
    assert 40 <= counts.dead < 50
    assert counts.length == 50 - counts.dead
    told_again = await redrive(line)
    assert told_again[-1].redriven == counts.dead
    assert payloads(await line.take(50)) == [b"%d" % number for number in range(50)]
    await assert_sound(line)


async def test_a_deadline_that_passes_stops_it(line: Line) -> None:
    await with_dead(line, 50)
    request = admin_service_pb2.RedriveRequest(queue=line.name, rate=10)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        async for _ in admin_of(line).Redrive(request, timeout=0.5):
            pass
    assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    counts = await line.counts()
    assert counts.dead > 30
    await assert_sound(line)


async def test_a_service_that_stops_ends_it_with_a_reason_and_another_goes_on(
    store_server: StoreServer,
    make_service: Callable[..., ServiceProcess],
    connect: Callable[[str], grpc.aio.Channel],
    line: Line,
    prefix: str,
) -> None:
    await with_dead(line, 50)
    doomed = await asyncio.to_thread(lambda: make_service(HEADWAY_REDIS_URL=store_server.url, PRESSURE_PREFIX=prefix))
    async with line_at(doomed.address, line.name, connect) as there:
        request = admin_service_pb2.RedriveRequest(queue=line.name, rate=10)
        call = admin_of(there).Redrive(request, timeout=SLACK_S)
        await call.read()
        doomed.signal(signal.SIGTERM)
        with refused("SHUTTING_DOWN", UNAVAILABLE) as said:
            while await call.read() is not grpc.aio.EOF:
                pass
        assert said.retry_delay is not None
    assert await asyncio.to_thread(doomed.wait) == 0
    left = (await line.counts()).dead
    assert 0 < left < 50
    assert (await redrive(line))[-1].redriven == left
    assert payloads(await line.take(50)) == [b"%d" % number for number in range(50)]
    await assert_sound(line)


async def test_two_at_once_put_each_message_back_once(line: Line) -> None:
    await with_dead(line, 2_000)
    told = await asyncio.gather(redrive(line), redrive(line))
    assert sum(one[-1].redriven for one in told) == 2_000
    counts = await line.counts()
    assert (counts.dead, counts.length) == (0, 2_000)
    await assert_sound(line)


async def test_progress_is_told_ten_times_a_second_at_most(line: Line) -> None:
    await with_dead(line, 60)
    request = admin_service_pb2.RedriveRequest(queue=line.name, rate=50)
    begun = time.monotonic()
    count = 0
    async for _ in admin_of(line).Redrive(request, timeout=SLACK_S):
        count += 1
    assert count <= 10 * (time.monotonic() - begun) + 3


# What is refused.


@pytest.mark.parametrize("rate", [0.0009, -1.0, 1_000_000.1, float("nan"), float("inf")])
async def test_a_rate_out_of_its_range_is_refused_and_nothing_moves(line: Line, rate: float) -> None:
    await with_dead(line, 1)
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await redrive(line, rate=rate)
    assert list(said.violations) == ["rate"]
    assert (await line.counts()).dead == 1


async def test_names_and_ids_that_are_none_are_refused(line: Line) -> None:
    await with_dead(line, 1)
    with refused("NAME_REFUSED", INVALID_ARGUMENT) as said:
        await redrive(line, to=f"{line.name}:closed")
    assert list(said.violations) == ["to_queue"]
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await redrive(line, "m0", "a\n")
    assert list(said.violations) == ["message_ids[1]"]
    with refused("TOO_LARGE", INVALID_ARGUMENT) as said:
        await redrive(line, *(f"m{number}" for number in range(1_001)))
    assert list(said.violations) == ["message_ids"]
    assert (await line.counts()).dead == 1


async def test_an_expired_message_is_put_back_with_its_time_over_or_anew_but_never_lost(line: Line) -> None:
    await line.create(dead_letter_expired=True)
    await line.put(Message(id="a", time_to_live=span(50)))
    await eventually(lambda: has_dead(line, 1))
    told = await redrive(line)
    assert told[-1].redriven == 1
    await assert_sound(line)


async def test_the_deaths_of_one_instant_are_all_within_a_redrive(line: Line) -> None:
    """What is dead at the start is told by a mark; those that died at the very instant of the mark count, too."""
    await line.create(retry=ONE_ATTEMPT)
    await bury(line, *(numbered(number) for number in range(300)))
    at = {dead.died_at.ToMilliseconds() for dead in await all_dead(line, page_size=1_000)}
    assert len(at) == 1
    assert (await redrive(line))[-1].redriven == 300
