"""Callers of Get that go away: what they were given comes back, and nothing is taken for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc

from harness import ServiceProcess, eventually
from headway.v1 import queue_service_pb2, queue_service_pb2_grpc
from wire.calls import ACKED, ALREADY_ACKED, EXTENDED, SLACK_S, Delivery, Line, leases, payloads, span
from wire.conditions import consumers_wait


async def is_acked(line: Line, count: int) -> bool:
    return (await line.describe()).counts.acked == count


async def test_a_cancelled_waiting_get_takes_nothing(line: Line) -> None:
    await line.create()
    waiting = asyncio.create_task(line.get(wait_ms=30_000))
    await eventually(lambda: consumers_wait(line, 1))
    waiting.cancel()
    await eventually(lambda: consumers_wait(line, 0))
    await line.put(b"one")
    delivery = await line.take_one()
    assert (delivery.message.payload, delivery.attempt) == (b"one", 1)
    assert (await line.counts()).leased == 1


async def test_a_get_cancelled_as_its_message_comes_loses_nothing(line: Line) -> None:
    # An answer that was on its way when its caller left is known to nobody: then the lease must lapse.
    await line.create(lease=span(500))
    rounds = 60
    for number in range(rounds):
        waiting = asyncio.create_task(line.get(wait_ms=30_000))
        await eventually(lambda: consumers_wait(line, 1))
        putting = asyncio.create_task(line.put(b"%d" % number))
        # At a different moment each round, before, while and after the message is leased.
        for _ in range(number % 12):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting, putting})
        if waiting.cancelled():
            delivery = await line.take_one(wait_ms=10_000, lease_ms=60_000)
        else:
            [delivery] = waiting.result().deliveries
        assert delivery.message.payload == b"%d" % number
        assert await line.ack(delivery.lease) == [ACKED]
    counts = await line.counts()
    assert (counts.length, counts.leased, counts.acked) == (0, 0, rounds)


async def test_a_connection_cut_while_its_gets_wait_takes_nothing(
    line: Line, connect: Callable[[str], grpc.aio.Channel], service: ServiceProcess
) -> None:
    await line.create(lease=span(600_000))
    channel = connect(service.address)
    other = Line(queue_service_pb2_grpc.QueueServiceStub(channel), line.name)
    calls = [asyncio.create_task(other.get(wait_ms=30_000)) for _ in range(3)]
    await eventually(lambda: consumers_wait(line, 3))
    await channel.close()
    await eventually(lambda: consumers_wait(line, 0))
    await asyncio.wait(calls)
    await line.put(b"one", b"two")
    assert [(one.message.payload, one.attempt) for one in await line.take(2)] == [(b"one", 1), (b"two", 1)]


async def test_a_connection_cut_as_its_messages_come_loses_none(
    line: Line, connect: Callable[[str], grpc.aio.Channel], service: ServiceProcess
) -> None:
    # An answer that was on its way when the connection was cut is known to nobody: then the lease must lapse.
    await line.create(lease=span(500))
    for number in range(15):
        channel = connect(service.address)
        other = Line(queue_service_pb2_grpc.QueueServiceStub(channel), line.name)
        calls = [asyncio.create_task(other.get(wait_ms=30_000)) for _ in range(3)]
        await eventually(lambda: consumers_wait(line, 3))
        putting = asyncio.create_task(line.put(b"one", b"two"))
        for _ in range(number % 8):
            await asyncio.sleep(0)
        await channel.close()
        await putting
        done, _ = await asyncio.wait(calls)
        answered: list[Delivery] = []
        for call in done:
            if not call.cancelled() and call.exception() is None:
                answered += call.result().deliveries
        extended = await line.extend(*leases(answered), lease_ms=60_000) if answered else []
        # On a busy machine even one that was answered may have lapsed.
        received = [one for one, end in zip(answered, extended, strict=True) if end.settled == EXTENDED]
        while len(received) < 2:
            received.append(await line.take_one(wait_ms=10_000, lease_ms=60_000))
        assert sorted(payloads(received)) == [b"one", b"two"]
        assert await line.ack(*leases(received)) == [ACKED, ACKED]
    counts = await line.counts()
    assert (counts.length, counts.leased, counts.acked) == (0, 0, 30)


async def test_leases_of_callers_that_went_come_back_to_the_head_in_ticket_order(line: Line) -> None:
    # An answer that was on its way when its caller went is known to nobody: that lease must lapse.
    await line.create(lease=span(500))
    await line.put(*(b"%d" % number for number in range(20)))
    for _ in range(10):
        call = line.stub.Get(queue_service_pb2.GetRequest(queue=line.name, max_messages=5), timeout=SLACK_S)
        await asyncio.sleep(0)
        call.cancel()
    deliveries = await eventually(lambda: taken_together(line, 20))
    assert payloads(deliveries) == [b"%d" % number for number in range(20)]


async def taken_together(line: Line, count: int) -> list[Delivery]:
    """So many, once all are back; fewer go back again, for a call that went may yet be heard."""
    assert await all_are_back(line, count)
    deliveries = list((await line.get(count, lease_ms=60_000)).deliveries)
    if len(deliveries) == count:
        return deliveries
    if deliveries:
        await line.delay(*leases(deliveries), delay_ms=0, keep_attempt=True)
    return []


async def all_are_back(line: Line, count: int) -> bool:
    counts = await line.counts()
    return (counts.length, counts.leased) == (count, 0)


async def test_a_settling_get_whose_caller_goes_away_has_settled(line: Line) -> None:
    await line.create()
    await line.put(b"one")
    lease = (await line.take_one()).lease
    waiting = asyncio.create_task(line.get(wait_ms=30_000, ack=[lease]))
    await eventually(lambda: is_acked(line, 1))
    waiting.cancel()
    assert await line.ack(lease) == [ALREADY_ACKED]
