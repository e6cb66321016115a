"""Callers and services that vanish in the middle of a Get: no message is lost, and no attempt is spent on nobody."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import grpc
import pytest

from faults.conftest import Connect, Open, Serve
from faults.wires import ReplyProxy
from harness import FaultProxy, ServiceProcess, StoreServer, eventually
from headway.v1 import message_pb2, queue_service_pb2, queue_service_pb2_grpc
from wire.calls import ACKED, Line, payloads, span
from wire.conditions import leased, producers_wait
from wire.watches import watching_blocked

pytestmark = pytest.mark.any_store

LONG_MS = 3_600_000
TRIES, ROUNDS = 50, 2
LATE_S = 0.15  # how late the store's answers may be
ALL_BACK_MS = 4_000  # of many queues together: one after another they would take twice as long


async def heard_at(stub: queue_service_pb2_grpc.QueueServiceAsyncStub) -> float:
    """By when the service has read all that was sent on this connection before: when it has answered a call behind
    that, for which it asks no store. On a busy machine that is late."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Get(queue_service_pb2.GetRequest(queue=""), timeout=30)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    return time.monotonic()


async def given_back(line: Line, payload: bytes, *, within_ms: int = 2_000) -> bool:
    """Whether the message comes to the next who asks, within seconds, as if nothing had been."""
    answer = await line.get(wait_ms=within_ms)
    if not answer.deliveries:
        return False
    [delivery] = answer.deliveries
    assert (delivery.message.payload, delivery.attempt) == (payload, 1)
    assert await line.ack(delivery.lease) == [ACKED]
    return True


@pytest.mark.slow
@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "at once"])
async def test_a_get_cancelled_at_any_moment_loses_no_message_and_spends_no_attempt(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open, waits: bool, figure: Callable[[str, str], None]
) -> None:
    """Around the instant of the put, with the lease long and the store slow."""
    chance = random.Random(7)
    direct = await serve(fresh_store_server.url)
    async with ReplyProxy(fresh_store_server.port) as proxy:
        slow = await serve(proxy.url)
        stub, here_stub = (await open_line(slow, "")).stub, (await open_line(direct, "")).stub
        outcomes = {"delivered": 0, "given back": 0, "on its way": 0}

        async def one(number: int, turn: int) -> None:
            payload = b"payload %d of %d" % (turn, number)
            mine, other = Line(stub, f"jobs-{number}"), Line(here_stub, f"jobs-{number}")
            if not waits:
                await other.put(payload)
            proxy.watched.add(payload)
            request = queue_service_pb2.GetRequest(
                queue=mine.name, wait=span(20_000 if waits else 0), lease=span(LONG_MS)
            )
            call = stub.Get(request, timeout=30)
            if waits:
                await asyncio.sleep(chance.uniform(0, 3 * LATE_S))
                put = asyncio.create_task(other.put(payload))
            await asyncio.sleep(chance.uniform(0, (4 if waits else 1.5) * LATE_S))
            if call.done():
                answer = await call
            else:
                call.cancel()
                cancel_heard_at = asyncio.create_task(heard_at(stub))
                answer = None
            if waits:
                await put
            if answer is not None and answer.deliveries:
                outcomes["delivered"] += 1
                assert payloads(answer.deliveries) == [payload]
                assert await other.ack(answer.deliveries[0].lease) == [ACKED]
            elif await given_back(other, payload, within_ms=ALL_BACK_MS):
                outcomes["given back"] += 1
            else:
                outcomes["on its way"] += 1
                assert (await other.counts()).leased == 1  # not lost, but with a caller who would not have it
                # What is on its way cannot be called back; but the answer was there before the service had heard.
                assert proxy.passed_at[payload] < await cancel_heard_at
                await other.delete()
                await other.create()

        await asyncio.gather(*(Line(here_stub, f"jobs-{number}").create() for number in range(TRIES)))
        proxy.delay_s = LATE_S
        for turn in range(ROUNDS):
            await asyncio.gather(*(one(number, turn) for number in range(TRIES)))
        figure(f"Gets cancelled ({'waiting' if waits else 'at once'})", str(outcomes))
        assert outcomes["given back"] > TRIES // 4


async def test_a_caller_whose_connection_breaks_gives_back_what_it_was_given(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open, connect: Connect
) -> None:
    """The store has handed the message out already; its answer is late, and nobody is there any more."""
    direct = await open_line(await serve(fresh_store_server.url), "jobs")
    await direct.create()
    async with ReplyProxy(fresh_store_server.port) as proxy:
        slow = await serve(proxy.url, HEADWAY_STORE_TIMEOUT="2s")  # longer than what is held here
        assert not (await (await open_line(slow, "jobs")).get()).deliveries  # so that the store knows the script
        async with connect(slow.address) as channel:
            stub = queue_service_pb2_grpc.QueueServiceStub(channel)
            await direct.put(b"x")
            proxy.hold_replies()
            request = queue_service_pb2.GetRequest(queue="jobs", lease=span(LONG_MS))
            call = stub.Get(request, timeout=10)
            call_ended = asyncio.ensure_future(call.code())
            await eventually(lambda: leased(direct, 1))
        assert await call_ended is not grpc.StatusCode.OK  # the channel is closed: the caller is gone
        await asyncio.sleep(0.3)  # nothing tells that the service has noticed
        proxy.pass_replies()
        assert await given_back(direct, b"x")


async def test_leases_of_a_killed_service_lapse_and_their_messages_come_through_another(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open, figure: Callable[[str, str], None]
) -> None:
    """Killed when the store had handed out, and before anybody was told."""
    direct = await open_line(await serve(fresh_store_server.url), "jobs")
    await direct.create(lease=span(2_000))
    await direct.put(*(b"%d" % number for number in range(-1, 5)))
    async with ReplyProxy(fresh_store_server.port) as proxy:
        dying = await serve(proxy.url)
        there = await open_line(dying, "jobs")
        await there.ack((await there.take_one()).lease)  # so that the store knows the script
        proxy.hold_replies()
        get = asyncio.create_task(there.get(3))
        await eventually(lambda: leased(direct, 3))
        taken_at = time.monotonic()
        await asyncio.to_thread(dying.kill)
        with pytest.raises(grpc.aio.AioRpcError):
            await get
    assert payloads(await direct.take(2)) == [b"3", b"4"]
    back = [await direct.take_one(wait_ms=5_000) for _ in range(3)]
    figure("messages of a killed service back", f"{time.monotonic() - taken_at:.3f} s after a lease of 2 s")
    assert [(one.message.payload, one.attempt) for one in back] == [(b"0", 2), (b"1", 2), (b"2", 2)]
    assert time.monotonic() - taken_at < 2.0 + 3.0


async def test_messages_that_fell_due_while_no_service_ran_are_delivered_after_the_start_in_due_order(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open, figure: Callable[[str, str], None]
) -> None:
    """Lapsed leases, too. Nobody but a waiting Get asks for them."""
    first = await serve(fresh_store_server.url)
    line = await open_line(first, "jobs")
    await line.create(lease=span(300))
    await line.put(b"leased")
    await line.take(1)
    delays = [700, 500, 600, 500]
    messages = [message_pb2.Message(payload=b"%d-%d" % (ms, at), delay=span(ms)) for at, ms in enumerate(delays)]
    await line.put(*messages)
    due_at = time.monotonic() + max(delays) / 1_000
    await asyncio.to_thread(first.kill)
    await asyncio.sleep(max(0.0, due_at - time.monotonic()))  # time itself is what must pass here
    again: ServiceProcess = await serve(fresh_store_server.url)
    started_at = time.monotonic()
    late = await open_line(again, "jobs")

    async def all_are_back() -> bool:
        with fresh_store_server.client() as client:
            return int(client.llen("__pressure__:jobs")) == 5

    await eventually(all_are_back, within=3.0)
    figure("5 messages due or lapsed meanwhile are back", f"{time.monotonic() - started_at:.3f} s after the start")
    got = await late.take(5)
    assert payloads(got) == [b"leased", b"500-1", b"500-3", b"600-2", b"700-0"]
    assert [one.attempt for one in got] == [2, 1, 1, 1, 1]


async def test_a_put_that_the_store_could_not_be_told_to_forget_waits_no_more_when_it_can(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open
) -> None:
    direct = await open_line(await serve(fresh_store_server.url), "jobs")
    await direct.create(bound=1)
    await direct.put(b"first")
    async with FaultProxy(fresh_store_server.port) as proxy:
        service = await serve(proxy.url)
        line = await open_line(service, "jobs")
        vanishing = asyncio.create_task(line.put(b"gone", wait_ms=60_000, producer="gone"))
        await eventually(lambda: producers_wait(direct, 1))
        staying = asyncio.create_task(direct.put(b"stays", wait_ms=60_000, producer="stays"))
        async with watching_blocked(direct, "stays") as watched:
            await watched.next(lambda told: told.position.position == 2)
            proxy.cut()
            vanishing.cancel()
            await eventually(lambda: "line.not_left" in service.log.read_text(), within=10)
            proxy.restore()
            await watched.next(lambda told: told.position.position == 1, within=10)
        await direct.take_one()
        await asyncio.wait_for(staying, 10)
