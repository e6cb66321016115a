"""Put at the bound: what fits, who waits for room, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import pytest

from harness import ServiceProcess, eventually, refused
from headway.v1 import error_reason_pb2, queue_service_pb2, queue_service_pb2_grpc
from wire.calls import RESOURCE_EXHAUSTED, Keys, Line, leases, message, named, now_ms, payloads, span
from wire.conditions import producers_wait


async def test_a_full_queue_is_refused_with_its_bound_and_when_to_try_again(line: Line) -> None:
    await line.create(bound=2)
    await line.put(b"one", b"two")
    with refused("QUEUE_FULL", RESOURCE_EXHAUSTED) as said:
        await line.put(b"three")
    assert said.metadata == {"queue": line.name, "bound": "2"}
    assert said.retry_delay is not None
    assert said.retry_delay.total_seconds() > 0
    assert (await line.counts()).accepted == 2


async def test_a_batch_is_accepted_from_the_first_on_as_far_as_there_is_room(line: Line) -> None:
    await line.create(bound=3)
    await line.put(b"zero")
    results = (await line.put(*(b"%d" % number for number in range(4)))).results
    assert [result.position for result in results] == [2, 3, 0, 0]
    for result in results[2:]:
        assert result.error.reason == error_reason_pb2.ERROR_REASON_QUEUE_FULL
        assert result.error.code == RESOURCE_EXHAUSTED.value[0]
        assert dict(result.error.metadata) == {"queue": line.name, "bound": "3"}
        assert (result.id, result.ticket) == ("", 0)
    assert payloads(await line.take(3)) == [b"zero", b"0", b"1"]


async def test_a_message_that_was_not_accepted_keeps_its_given_id_in_the_result(line: Line) -> None:
    await line.create(bound=1)
    results = (await line.put(named("one"), named("two"))).results
    assert [result.id for result in results] == ["one", "two"]
    await line.take()
    assert not (await line.put(named("two"))).results[0].HasField("error")


async def test_a_put_waits_for_room_as_long_as_it_said(line: Line, keys: Keys) -> None:
    await line.create(bound=1)
    await line.put(b"one")
    before = now_ms(keys.client)
    with refused("QUEUE_FULL"):
        await line.put(b"two", wait_ms=300)
    assert now_ms(keys.client) - before >= 290
    await eventually(lambda: producers_wait(line, 0))


async def test_a_put_that_waits_past_its_deadline_is_answered_before_it(line: Line) -> None:
    await line.create(bound=1)
    await line.put(b"one")
    request = queue_service_pb2.PutRequest(queue=line.name, messages=[message(b"two")], wait=span(60_000))
    with refused("QUEUE_FULL", RESOURCE_EXHAUSTED):
        await line.stub.Put(request, timeout=1)
    assert payloads(await line.take()) == [b"one"]
    assert (await line.counts()).accepted == 1


async def test_a_large_batch_trickles_in_while_there_is_room_and_time(line: Line) -> None:
    await line.create(bound=2)
    putting = asyncio.create_task(line.put(*(b"%d" % number for number in range(9)), wait_ms=20_000))
    got: list[bytes] = []
    while len(got) < 9:
        answer = await line.get(2, wait_ms=5_000)
        assert (await line.counts()).length <= 2
        got += payloads(answer.deliveries)
    assert got == [b"%d" % number for number in range(9)]
    results = (await putting).results
    assert [result.ticket for result in results] == list(range(1, 10))


async def test_of_a_batch_that_ran_out_of_time_the_first_are_in_and_the_rest_are_refused_one_by_one(line: Line) -> None:
    await line.create(bound=2)
    results = (await line.put(*(b"%d" % number for number in range(4)), wait_ms=200)).results
    assert [result.HasField("error") for result in results] == [False, False, True, True]


async def test_waiting_producers_are_served_in_the_order_they_came(line: Line) -> None:
    await line.create(bound=1)
    await line.put(b"first")
    waiting = []
    for number in range(6):
        waiting.append(asyncio.create_task(line.put(b"%d" % number, wait_ms=30_000)))
        await eventually(lambda count=number: producers_wait(line, count + 1))  # type: ignore[misc]
    assert payloads(await line.take()) == [b"first"]
    for number in range(6):
        assert payloads(await line.take(wait_ms=10_000)) == [b"%d" % number]
    await asyncio.gather(*waiting)


async def test_a_newcomer_does_not_overtake_a_producer_that_waits(line: Line) -> None:
    await line.create(bound=2)
    await line.put(b"one", b"two")
    waiting = asyncio.create_task(line.put(b"three", b"four", wait_ms=30_000))
    await eventually(lambda: producers_wait(line, 1))
    await line.take()
    with refused("QUEUE_FULL"):
        await line.put(b"newcomer")
    await line.take(2, wait_ms=5_000)
    await asyncio.wait_for(waiting, 10)
    with pytest.raises(grpc.aio.AioRpcError):
        await line.put(*(b"newcomer" for _ in range(2)), all_or_nothing=True)


async def test_a_producer_that_gave_up_does_not_hold_up_those_behind_it(line: Line) -> None:
    await line.create(bound=1)
    await line.put(b"one")
    first = asyncio.create_task(line.put(b"gives up", wait_ms=30_000))
    await eventually(lambda: producers_wait(line, 1))
    second = asyncio.create_task(line.put(b"stays", wait_ms=30_000))
    await eventually(lambda: producers_wait(line, 2))
    first.cancel()
    await eventually(lambda: producers_wait(line, 1))
    await line.take()
    await asyncio.wait_for(second, 10)
    assert payloads(await line.take()) == [b"stays"]
    assert (await line.counts()).accepted == 2


async def test_what_was_not_accepted_yet_is_not_put_if_the_caller_goes_away(line: Line) -> None:
    await line.create(bound=2)
    waiting = asyncio.create_task(line.put(b"one", b"two", b"three", b"four", wait_ms=30_000))
    await eventually(lambda: producers_wait(line, 1))
    waiting.cancel()
    await eventually(lambda: producers_wait(line, 0))
    assert payloads(await line.take(2)) == [b"one", b"two"]
    assert (await line.counts()).accepted == 2


async def test_32_producers_racing_into_a_bound_of_10_never_exceed_it(line: Line, keys: Keys) -> None:
    await line.create(bound=10)
    lengths: list[int] = []
    each, producers = 10, 32
    done = asyncio.Event()

    async def produce(who: int) -> None:
        for number in range(each):
            await line.put(b"%d %d" % (who, number), wait_ms=60_000)

    async def sample() -> None:
        while not done.is_set():
            lengths.append(keys.length)
            await asyncio.sleep(0)

    async def consume() -> list[bytes]:
        got: list[bytes] = []
        while len(got) < each * producers:
            answer = await line.get(3, wait_ms=5_000)
            got += payloads(answer.deliveries)
            if answer.deliveries:
                await line.ack(*leases(answer.deliveries))
        done.set()
        return got

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        consuming = tasks.create_task(consume())
        tasks.create_task(sample())
        for who in range(producers):
            tasks.create_task(produce(who))
    assert max(lengths) <= 10
    got = consuming.result()
    assert len(set(got)) == len(got) == each * producers
    for who in range(producers):  # each producer's own order is kept
        own = [payload for payload in got if payload.startswith(b"%d " % who)]
        assert own == [b"%d %d" % (who, number) for number in range(each)]


async def test_a_connection_cut_in_the_middle_of_waiting_takes_its_put_out_of_the_line(
    line: Line, connect: Callable[[str], grpc.aio.Channel], service: ServiceProcess
) -> None:
    await line.create(bound=1)
    await line.put(b"one")
    channel = connect(service.address)
    other = Line(queue_service_pb2_grpc.QueueServiceStub(channel), line.name)
    waiting = asyncio.create_task(other.put(b"two", wait_ms=30_000))
    await eventually(lambda: producers_wait(line, 1))
    await channel.close()
    await eventually(lambda: producers_wait(line, 0))
    await asyncio.wait({waiting})
    await line.take()
    assert (await line.counts()).accepted == 1
