"""Those who wait, wait through the store's troubles: nobody is forgotten, and producers keep their order."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import psutil
import pytest

from faults.conftest import Connect, Open, Serve
from faults.moments import at_rest, written
from harness import FaultProxy, StoreServer, error_of, eventually, refused
from headway.v1 import queue_service_pb2, queue_service_pb2_grpc
from wire.calls import UNAVAILABLE, Line, payloads, span

WAIT_MS = 30_000
WAKE_S = 3.0  # the promise is 1 s after a reconnect; this machine does other things, too


async def waiting(line: Line, *, consumers: int = 0, producers: int = 0) -> None:
    """Returns when so many wait, as this line's service sees it."""

    async def wait() -> bool:
        counts = await line.counts()
        return counts.consumers_waiting >= consumers and counts.producers_waiting >= producers

    await eventually(wait)


async def tries(call: Callable[[], Coroutine[Any, Any, object]]) -> bool:
    """Whether the store's trouble is over for this call."""
    try:
        await call()
    except grpc.aio.AioRpcError as error:
        assert error.code() is UNAVAILABLE, error_of(error)
        return False
    return True


async def test_waiting_gets_survive_a_restart_of_the_store_and_are_served_afterwards(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open, figure: Callable[[str, str], None]
) -> None:
    """On the process that hears the Put, and on another one."""
    first = await open_line(await serve(fresh_store_server.url), "jobs")
    second = await open_line(await serve(fresh_store_server.url), "jobs")
    await first.create()
    gets = [asyncio.create_task(line.get(wait_ms=WAIT_MS)) for line in (first, second) for _ in range(5)]
    await waiting(first, consumers=5)
    await waiting(second, consumers=5)
    await at_rest(fresh_store_server)
    await asyncio.to_thread(fresh_store_server.restart)
    back_at = time.monotonic()
    for number in range(10):
        await eventually(lambda number=number: tries(lambda: first.put(b"%d" % number)), within=WAKE_S)  # type: ignore[misc]
    answers = await asyncio.wait_for(asyncio.gather(*gets), WAKE_S)
    figure("10 waiting Gets served after a restart", f"{time.monotonic() - back_at:.3f} s")
    assert {payload for answer in answers for payload in payloads(answer.deliveries)} == {b"%d" % n for n in range(10)}


async def test_waiting_gets_outlast_a_store_that_is_away_for_a_while(
    line: Line, fresh_store_server: StoreServer
) -> None:
    await line.create()
    get = asyncio.create_task(line.get(wait_ms=WAIT_MS))
    short = asyncio.create_task(line.get(wait_ms=1_500))
    await waiting(line, consumers=2)
    await at_rest(fresh_store_server)
    await written(fresh_store_server)
    fresh_store_server.kill()
    with refused("STORE_UNAVAILABLE", UNAVAILABLE):  # it is down, and down is not empty
        await short
    await asyncio.to_thread(fresh_store_server.restart)
    await eventually(lambda: tries(lambda: line.put(b"x")), within=WAKE_S)
    assert payloads((await asyncio.wait_for(get, WAKE_S)).deliveries) == [b"x"]


@pytest.mark.parametrize("away", ["refused", "silent"])
async def test_a_wait_that_ends_while_the_store_is_away_is_never_called_empty(
    line: Line, fresh_store_server: StoreServer, away: str
) -> None:
    """Whoever waits does not ask all the time; before it says "nothing came", it looks. In time for the caller, too."""
    await line.create()
    request = queue_service_pb2.GetRequest(queue=line.name, wait=span(3_000))
    at_ease = asyncio.create_task(line.get(wait_ms=3_000))
    in_a_hurry = asyncio.ensure_future(line.stub.Get(request, timeout=3.0))
    await waiting(line, consumers=2)
    await at_rest(fresh_store_server)
    await written(fresh_store_server)
    if away == "refused":
        fresh_store_server.kill()
    else:
        fresh_store_server.pause()
    # Who has no time beyond the wait may, on a busy machine, be cut off before it is told. Never "empty".
    with pytest.raises(grpc.aio.AioRpcError) as hurried:
        await in_a_hurry
    assert hurried.value.code() in {UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
    with refused("STORE_UNAVAILABLE", UNAVAILABLE) as said:
        await at_ease
    assert said.metadata["cause"] == away.upper()
    if away == "silent":
        fresh_store_server.resume()


async def test_a_short_wait_that_ends_while_the_store_stalls_is_empty_when_it_answers(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open
) -> None:
    """The caller has seconds: that the wait was short is no reason to call the store lost."""
    line = await open_line(await serve(fresh_store_server.url, HEADWAY_STORE_TIMEOUT="2s"), "jobs")
    await line.create()
    get = asyncio.create_task(line.get(wait_ms=300))
    await waiting(line, consumers=1)
    fresh_store_server.pause()
    await asyncio.sleep(0.8)  # of which half a second after the wait
    fresh_store_server.resume()
    assert not (await get).deliveries


async def test_everybody_is_woken_after_the_hints_were_cut(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open, figure: Callable[[str, str], None]
) -> None:
    """What was put meanwhile by another process, or by a foreign client, could not be heard of."""
    async with FaultProxy(fresh_store_server.port) as proxy:
        cut_off = await serve(proxy.url)
        other = await serve(fresh_store_server.url)
        lines = [await open_line(cut_off, f"jobs-{number}") for number in range(5)]
        gets = []
        for line in lines:
            await line.create()
            gets += [asyncio.create_task(line.get(wait_ms=WAIT_MS)) for _ in range(4)]
            await waiting(line, consumers=4)
        await at_rest(fresh_store_server)
        proxy.cut()
        for line in lines[1:]:
            there = await open_line(other, line.name)
            await there.put(*(b"%d" % number for number in range(4)))
        put_by_foreign(fresh_store_server, lines[0], *(b"%d" % number for number in range(4)))
        assert not any(get.done() for get in gets)
        proxy.restore()
        back_at = time.monotonic()
        answers = await asyncio.wait_for(asyncio.gather(*gets), WAKE_S)
        figure("20 waiting Gets woken after a cut", f"{time.monotonic() - back_at:.3f} s")
        assert sorted(payload for answer in answers for payload in payloads(answer.deliveries)) == sorted(
            b"%d" % number for number in range(4) for _ in range(5)
        )


@pytest.mark.parametrize("trouble", ["killed", "silent", "cut"])
async def test_waiting_gets_survive_the_trouble_and_hear_what_a_foreign_client_puts_after_it(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open, trouble: str
) -> None:
    """No process announces that: only what the store tells those who listen."""
    async with FaultProxy(fresh_store_server.port) as proxy:
        line = await open_line(await serve(proxy.url), "jobs")
        await line.create()
        gets = [asyncio.create_task(line.get(wait_ms=WAIT_MS)) for _ in range(3)]
        await waiting(line, consumers=3)
        await at_rest(fresh_store_server)
        if trouble == "killed":
            await written(fresh_store_server)
            fresh_store_server.kill()
        elif trouble == "silent":
            fresh_store_server.pause()
        else:
            proxy.cut()
        assert not await tries(line.describe)
        if trouble == "killed":
            await asyncio.to_thread(fresh_store_server.restart)
        elif trouble == "silent":
            fresh_store_server.resume()
        else:
            proxy.restore()
        assert not any(get.done() for get in gets)
        put_by_foreign(fresh_store_server, line, b"1", b"2", b"3")
        answers = await asyncio.wait_for(asyncio.gather(*gets), WAKE_S)
        assert sorted(payload for one in answers for payload in payloads(one.deliveries)) == [b"1", b"2", b"3"]


def put_by_foreign(store: StoreServer, line: Line, *messages: bytes) -> None:
    with store.client() as client:
        client.lpush(f"__pressure__:{line.name}", *messages)


async def test_gets_survive_resets_of_every_connection_again_and_again(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open
) -> None:
    async with FaultProxy(fresh_store_server.port) as proxy:
        shaky = await open_line(await serve(proxy.url), "jobs")
        direct = await open_line(await serve(fresh_store_server.url), "jobs")
        await shaky.create()
        for turn in range(10):
            get = asyncio.create_task(shaky.get(wait_ms=WAIT_MS))
            await waiting(shaky, consumers=1)
            await at_rest(fresh_store_server)
            proxy.cut(refuse=False)
            await direct.put(b"%d" % turn)
            assert payloads((await asyncio.wait_for(get, WAKE_S)).deliveries) == [b"%d" % turn]


@pytest.mark.parametrize("flag", ["tracking", "pubsub"])
async def test_one_lost_connection_of_the_hints_is_found_and_made_up_for(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open, flag: str, figure: Callable[[str, str], None]
) -> None:
    """The subscription's end is seen at once; the tracking one's at the next use."""
    waits = await open_line(await serve(fresh_store_server.url), "jobs")
    with fresh_store_server.client() as client:
        letter = {"tracking": "t", "pubsub": "P"}[flag]
        [number] = [one["id"] for one in client.client_list() if letter in one["flags"]]
        await waits.create()
        client.client_kill_filter(_id=number)
        direct = await open_line(await serve(fresh_store_server.url), "jobs")
        get = asyncio.create_task(waits.get(wait_ms=WAIT_MS))
        await waiting(waits, consumers=1)
        put_at = time.monotonic()
        await direct.put(b"x")
        assert payloads((await asyncio.wait_for(get, WAKE_S)).deliveries) == [b"x"]
        figure(f"woken after the {flag} connection was killed", f"{time.monotonic() - put_at:.3f} s")


async def test_waiting_puts_keep_their_order_through_a_restart_of_the_store(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open
) -> None:
    """One order over two processes. Whoever does not listen when there is room is passed over, so room comes when both
    listen again."""
    lines = [await open_line(await serve(fresh_store_server.url), "jobs") for _ in range(2)]
    await lines[0].create(bound=1)
    await lines[0].put(b"first")
    puts = []
    for number in range(8):
        puts.append(asyncio.create_task(lines[number % 2].put(b"%d" % number, wait_ms=WAIT_MS)))
        await waiting(lines[0], producers=number + 1)
    await at_rest(fresh_store_server)
    await asyncio.to_thread(fresh_store_server.restart)
    with fresh_store_server.client() as client:
        await eventually(lambda: len(client.pubsub_channels("*headway*")) == 2, within=WAKE_S)
    got: list[bytes] = []

    async def take() -> bool:
        answer = await lines[0].get(wait_ms=1_000)
        got.extend(payloads(answer.deliveries))
        return len(got) == 9

    await eventually(lambda: tries(lines[0].describe), within=WAKE_S)
    await eventually(take, within=15.0)
    await asyncio.gather(*puts)
    assert got == [b"first", *(b"%d" % number for number in range(8))]


async def test_a_producer_whose_process_was_killed_does_not_hold_up_the_line(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open, figure: Callable[[str, str], None]
) -> None:
    dying, living = await serve(fresh_store_server.url), await serve(fresh_store_server.url)
    there, here = await open_line(dying, "jobs"), await open_line(living, "jobs")
    await here.create(bound=1)
    await here.put(b"first")
    lost = asyncio.create_task(there.put(b"lost", wait_ms=WAIT_MS))
    await waiting(here, producers=1)
    put = asyncio.create_task(here.put(b"second", wait_ms=WAIT_MS))
    await waiting(here, producers=2)
    await asyncio.to_thread(dying.kill)
    with pytest.raises(grpc.aio.AioRpcError):
        await lost
    assert payloads(await here.take(1)) == [b"first"]
    room_at = time.monotonic()
    await asyncio.wait_for(put, 10)
    figure("producer behind a dead one put", f"{time.monotonic() - room_at:.3f} s after there was room")
    assert payloads(await here.take(1)) == [b"second"]


@pytest.mark.slow
async def test_a_thousand_waiting_gets_need_no_connection_each_and_end_when_the_service_stops(
    fresh_store_server: StoreServer, serve: Serve, connect: Connect, figure: Callable[[str, str], None]
) -> None:
    service = await serve(fresh_store_server.url, HEADWAY_SHUTDOWN_GRACE="10s")
    async with connect(service.address) as channel:
        stub = queue_service_pb2_grpc.QueueServiceStub(channel)
        lines = [Line(stub, f"idle-{number}") for number in range(200)]
        await asyncio.gather(*(line.create() for line in lines))
        gets = [asyncio.create_task(wait_long(line)) for line in lines for _ in range(5)]
        for line in lines:
            await waiting(line, consumers=5)
        with fresh_store_server.client() as client:
            connections = len(client.client_list())
        assert connections <= 25
        process = psutil.Process(service.pid)
        figure("1,000 waiting Gets", f"{connections} connections, {process.memory_info().rss / 1e6:.0f} MB")
        stopped_at = time.monotonic()
        service.signal(signal.SIGTERM)
        reasons = await asyncio.wait_for(asyncio.gather(*gets), 10)
        figure("1,000 waiting Gets ended", f"{time.monotonic() - stopped_at:.3f} s after SIGTERM")
        assert set(reasons) == {"SHUTTING_DOWN"}
    assert await asyncio.to_thread(service.wait) == 0


async def wait_long(line: Line) -> str:
    request = queue_service_pb2.GetRequest(queue=line.name, wait=span(600_000))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await line.stub.Get(request, timeout=610)
    return error_of(caught.value).reason
