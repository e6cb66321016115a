"""Close: no more puts; what waits, is delayed or leased is drained, then everybody is told."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import grpc
import pytest

from faults.moments import at_rest
from harness import ServiceProcess, StoreServer, error_of, eventually, refused
from headway.v1 import queue_service_pb2
from wire.calls import (
    FAILED_PRECONDITION,
    INVALID_ARGUMENT,
    NOT_FOUND,
    UNAVAILABLE,
    Keys,
    Line,
    leases,
    line_at,
    message,
    payloads,
    span,
)
from wire.conditions import consumers_wait, producers_wait


async def test_an_unknown_queue_is_not_found(line: Line) -> None:
    with refused("QUEUE_NOT_FOUND", NOT_FOUND) as said:
        await line.close()
    assert said.metadata == {"queue": line.name}


async def test_a_closed_queue_says_so_takes_nothing_and_gives_the_rest(line: Line) -> None:
    await line.create()
    await line.put(b"one")
    assert (await line.close()).closed
    assert (await line.describe()).closed
    with refused("QUEUE_CLOSED", FAILED_PRECONDITION) as said:
        await line.put(b"two")
    assert said.metadata == {"queue": line.name}
    assert payloads(await line.take()) == [b"one"]


async def test_a_second_close_is_refused(line: Line) -> None:
    await line.create()
    await line.close()
    with refused("QUEUE_CLOSED", FAILED_PRECONDITION) as said:
        await line.close()
    assert said.metadata == {"queue": line.name}
    assert said.preconditions == [("QUEUE_CLOSED", line.name)]


async def test_an_empty_closed_queue_is_drained(line: Line) -> None:
    await line.create()
    await line.close()
    for wait_ms in (0, 5_000):
        with refused("QUEUE_DRAINED", FAILED_PRECONDITION) as said:
            await line.get(wait_ms=wait_ms)
        assert said.metadata == {"queue": line.name}


@pytest.mark.parametrize("settle", ["ack", "lapse", "release", "delay"])
async def test_a_queue_is_drained_only_when_nothing_waits_is_delayed_or_leased(line: Line, settle: str) -> None:
    await line.create()
    await line.put(b"one")
    delivery = await line.take_one()
    await line.close()
    waiting = asyncio.create_task(line.get(wait_ms=20_000))
    await eventually(lambda: consumers_wait(line))
    if settle == "ack":
        await line.ack(delivery.lease)
    elif settle == "release":
        await line.delay(delivery.lease, delay_ms=0)
    elif settle == "delay":
        await line.delay(delivery.lease, delay_ms=150)
    else:
        await line.extend(delivery.lease, lease_ms=150)
    if settle == "ack":
        with refused("QUEUE_DRAINED", FAILED_PRECONDITION):
            await waiting
        return
    [again] = (await asyncio.wait_for(waiting, 10)).deliveries
    assert (again.message.payload, again.attempt) == (b"one", 2)
    await line.ack(again.lease)
    with refused("QUEUE_DRAINED", FAILED_PRECONDITION):
        await line.get()


async def test_who_waits_hears_at_once_that_the_last_of_several_leases_ended(
    line: Line, store_server: StoreServer
) -> None:
    await line.create()
    await line.put(b"one", b"two", b"three")
    deliveries = await line.take(3)
    await line.close()
    waiting = asyncio.create_task(line.get(wait_ms=20_000))
    await eventually(lambda: consumers_wait(line))
    await at_rest(store_server)  # it looks no more, but listens
    await line.ack(*leases(deliveries))
    with refused("QUEUE_DRAINED"):
        await asyncio.wait_for(waiting, 4)  # sooner than by the safety check


async def test_so_does_who_waits_behind_one_that_was_served(line: Line, store_server: StoreServer) -> None:
    await line.create()
    await line.put(b"one")
    delivery = await line.take_one()
    await line.close()
    waiting = [asyncio.create_task(line.get(wait_ms=20_000)) for _ in range(2)]
    await eventually(lambda: consumers_wait(line, 2))
    await at_rest(store_server)
    await line.delay(delivery.lease, delay_ms=0)
    [served], [behind] = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await at_rest(store_server)
    await line.ack(*leases(served.result().deliveries))
    with refused("QUEUE_DRAINED"):
        await asyncio.wait_for(behind, 4)


async def test_a_delayed_message_keeps_a_closed_queue_from_being_drained(line: Line) -> None:
    await line.create()
    later = message(b"later")
    later.delay.CopyFrom(span(1_500))
    await line.put(later)
    await line.close()
    assert (await line.get()).deliveries == []
    assert payloads(await line.take(wait_ms=10_000)) == [b"later"]


async def test_closing_ends_waiting_gets_of_an_empty_queue(line: Line) -> None:
    await line.create()
    waiting = [asyncio.create_task(line.get(wait_ms=20_000)) for _ in range(5)]
    await eventually(lambda: consumers_wait(line, 5))
    await line.close()
    for call in waiting:
        with refused("QUEUE_DRAINED", FAILED_PRECONDITION):
            await asyncio.wait_for(call, 10)


async def test_closing_ends_waiting_puts_and_what_was_accepted_stays(line: Line) -> None:
    await line.create(bound=2)
    waiting = asyncio.create_task(line.put(b"one", b"two", b"three", wait_ms=20_000))
    await eventually(lambda: producers_wait(line))
    await line.close()
    results = (await asyncio.wait_for(waiting, 10)).results
    assert [result.HasField("error") for result in results] == [False, False, True]
    assert results[2].error.code == FAILED_PRECONDITION.value[0]
    assert payloads(await line.take(2)) == [b"one", b"two"]


async def test_closing_ends_a_waiting_put_of_which_nothing_was_accepted(line: Line) -> None:
    await line.create(bound=1)
    await line.put(b"one")
    waiting = asyncio.create_task(line.put(b"two", wait_ms=20_000))
    await eventually(lambda: producers_wait(line))
    await line.close()
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await asyncio.wait_for(waiting, 10)
    assert error_of(error.value).reason == "QUEUE_CLOSED"


async def test_a_closed_queue_settles_as_before(line: Line) -> None:
    await line.create()
    await line.put(b"one", b"two", b"three")
    one, two, three = await line.take(3)
    await line.close()
    assert await line.ack(one.lease) == [1]
    assert [result.settled for result in await line.extend(two.lease)] == [5]
    assert [result.settled for result in await line.delay(three.lease, delay_ms=0)] == [3]


async def test_a_closed_queue_can_be_deleted_and_made_anew(line: Line, keys: Keys) -> None:
    await line.create()
    await line.close()
    await line.delete()
    assert keys.all() == set()
    assert not (await line.create()).queue.closed


@pytest.mark.parametrize("wait_ms", [-1, -0.000001, 3_600_001])
async def test_a_wait_out_of_its_range_is_refused(line: Line, wait_ms: float) -> None:
    await line.create()
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.close(wait_ms=wait_ms)
    assert list(said.violations) == ["wait"]
    assert not (await line.describe()).closed


@pytest.mark.parametrize("wait_ms", [0, 1, 3_600_000])
async def test_a_wait_up_to_its_bounds_is_taken(line: Line, wait_ms: float) -> None:
    await line.create()
    assert (await line.close(wait_ms=wait_ms)).closed


async def test_of_many_parallel_closes_one_closes(line: Line) -> None:
    await line.create()
    answers = await asyncio.gather(*(line.close() for _ in range(20)), return_exceptions=True)
    errors = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
    assert len(errors) == 19
    assert {error_of(error).reason for error in errors} == {"QUEUE_CLOSED"}


async def test_closing_with_a_deadline_shorter_than_the_wait_answers_before_the_deadline(
    line: Line, keys: Keys
) -> None:
    await line.create()
    keys.client.rpop(keys["producer_free"])
    request = queue_service_pb2.CloseRequest(queue=line.name, wait=span(60_000))
    with refused("ROLE_IN_USE", FAILED_PRECONDITION):
        await line.stub.Close(request, timeout=1)
    keys.client.lpush(keys["producer_free"], 0)


async def test_a_service_that_stops_ends_a_close_and_a_delete_that_wait(
    store_server: StoreServer,
    make_service: Callable[..., ServiceProcess],
    connect: Callable[[str], grpc.aio.Channel],
    line: Line,
    keys: Keys,
) -> None:
    settings = {"HEADWAY_REDIS_URL": store_server.url, "PRESSURE_PREFIX": keys.prefix}
    doomed = await asyncio.to_thread(lambda: make_service(**settings))
    gone = Line(line.stub, f"{line.name}-gone")
    of_gone = Keys(keys.client, keys.prefix, gone.name)
    for each, its in ((line, keys), (gone, of_gone)):
        await each.create()
        its.client.rpop(its["producer_free"])
    async with line_at(doomed.address, line.name, connect) as there:
        closing = asyncio.create_task(there.close(wait_ms=600_000))
        await asyncio.sleep(0)  # it is sent first
        deleting = asyncio.create_task(Line(there.stub, gone.name).delete(wait_ms=600_000))
        await eventually(lambda: not of_gone.client.exists(of_gone["bound"]))
        doomed.signal(signal.SIGTERM)
        for waiting in (closing, deleting):
            with refused("SHUTTING_DOWN", UNAVAILABLE) as said:
                await waiting
            assert said.retry_delay is not None
    assert await asyncio.to_thread(doomed.wait) == 0
    assert not (await line.describe()).closed
    with refused("QUEUE_DELETED", NOT_FOUND):  # its deletion has begun, and can be finished
        await gone.create()
    for its in (keys, of_gone):
        its.client.lpush(its["producer_free"], 0)
    await gone.delete()
    assert of_gone.all() == set()
    assert (await line.close()).closed
