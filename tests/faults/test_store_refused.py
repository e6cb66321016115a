"""The store is gone, or cut off: every call says so at once, and works again as soon as the store is back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from faults.conftest import Connect, Open, Serve
from faults.moments import written
from faults.table import (
    READS,
    ask,
    ask_all,
    ask_each,
    assert_not_done_or_unknown,
    assert_unavailable,
    assert_unknown,
    requests,
)
from harness import FaultProxy, StoreServer, error_of, eventually
from headway.v1 import admin_service_pb2, queue_service_pb2
from wire.calls import ACKED, GONE, Line, Message, payloads, span

RETURN_S = 3.0  # the promise is 1 s; this machine does other things, too


async def test_every_served_call_is_in_the_table(
    fresh_store_server: StoreServer, serve: Serve, connect: Connect
) -> None:
    """GetServerInfo apart, which always answers, and the streams for throughput, which test_flows has. What is not
    served says so."""
    known = {*requests("jobs", "lease"), "GetServerInfo", "Produce", "Consume"}
    service = await serve(fresh_store_server.url)
    served: set[str] = set()
    async with connect(service.address) as channel:
        for file in (queue_service_pb2.DESCRIPTOR, admin_service_pb2.DESCRIPTOR):
            for owner in file.services_by_name.values():
                for found in owner.methods:
                    call: Any = channel.unary_unary(f"/{owner.full_name}/{found.name}")
                    try:
                        await call(b"", timeout=5)
                    except grpc.aio.AioRpcError as error:
                        if error_of(error).code is grpc.StatusCode.UNIMPLEMENTED:
                            continue
                    served.add(found.name)
    assert served == known


@pytest.mark.parametrize("gone", ["store", "wire"])
async def test_every_call_says_at_once_that_the_store_is_refused_and_works_soon_after_its_return(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open, gone: str, figure: Callable[[str, str], None]
) -> None:
    """The store's process is dead, or every connection to it is reset."""
    info = admin_service_pb2.GetServerInfoRequest()
    async with FaultProxy(fresh_store_server.port) as proxy:
        line = await open_line(await serve(proxy.url if gone == "wire" else fresh_store_server.url), "jobs")
        assert line.admin
        await line.create()
        await line.put(b"before")
        lease = (await line.take_one(lease_ms=60_000)).lease
        was = (await line.admin.GetServerInfo(info, timeout=5)).store
        if gone == "wire":
            proxy.cut()
        else:
            await written(fresh_store_server)
            fresh_store_server.kill()
        async for answer in ask_each(line, lease):
            if gone == "wire":  # the first may meet a connection whose reset was not seen yet
                assert_not_done_or_unknown(answer, "REFUSED", "RESET", within_s=1.0)
            else:
                assert_unavailable(answer, "REFUSED", within_s=1.0)
        for answer in await ask_all(line, lease):
            assert_unavailable(answer, "REFUSED", within_s=1.0)
        for answer in await ask_all(line, lease, timeout=0.5):
            assert_unavailable(answer, "REFUSED", within_s=0.5)
        told = (await line.admin.GetServerInfo(info, timeout=2)).store
        assert (was.reachable, told.reachable) == (True, False)
        assert (told.kind, told.version) == (was.kind, was.version)  # as it was last

        if gone == "wire":
            proxy.restore()
        else:
            await asyncio.to_thread(fresh_store_server.restart)
        back_at = time.monotonic()

        async def works() -> bool:
            answers = await ask_all(line, lease)
            return not any(answer.error.code is grpc.StatusCode.UNAVAILABLE for answer in answers)

        await eventually(works, within=RETURN_S)
        figure(f"works after the return of the {gone}", f"{time.monotonic() - back_at:.3f} s")
        assert (await line.admin.GetServerInfo(info, timeout=2)).store.reachable


async def test_what_was_accepted_and_leased_before_a_crash_of_the_store_is_there_after_it(
    line: Line, fresh_store_server: StoreServer
) -> None:
    await line.create()
    await line.put(*(b"%d" % number for number in range(100)))
    taken = await line.take(10, lease_ms=60_000)
    await written(fresh_store_server)
    fresh_store_server.kill()
    await asyncio.to_thread(fresh_store_server.restart)
    assert await line.ack(*(delivery.lease for delivery in taken)) == [ACKED] * 10
    rest = await line.take(90)
    assert payloads(rest) == [b"%d" % number for number in range(10, 100)]
    assert {delivery.attempt for delivery in rest} == {1}


async def test_leases_lapse_and_delays_fall_due_after_the_store_came_back(
    line: Line, fresh_store_server: StoreServer
) -> None:
    """By themselves: nobody asks for the queue."""
    await line.create()
    await line.put(b"leased", Message(payload=b"delayed", delay=span(300)))
    await line.take_one(lease_ms=300)
    await written(fresh_store_server)
    fresh_store_server.kill()
    await asyncio.to_thread(fresh_store_server.restart)
    with fresh_store_server.client() as client:
        await eventually(lambda: client.llen("__pressure__:jobs") == 2, within=10)


async def test_a_store_that_dies_under_a_call_leaves_a_write_unknown_and_a_read_undone(
    line: Line, fresh_store_server: StoreServer
) -> None:
    """A call that reads has no outcome to be unsure of. The connection stood before, so the call was sent."""
    await line.create()
    asked = requests(line.name, "")
    for name in ("Put", "Describe"):
        await line.describe()
        await written(fresh_store_server)
        fresh_store_server.pause()
        call = asyncio.create_task(ask(line, name, asked[name], timeout=10))
        await asyncio.sleep(0.2)  # for the call to be sent to a store that cannot tell that it was
        fresh_store_server.kill()
        if name in READS:
            assert_unavailable(await call, "REFUSED", within_s=1.0)
        else:
            assert_unknown(await call, "RESET", within_s=1.0)
        await asyncio.to_thread(fresh_store_server.restart)
    assert not await line.peek()  # the store had not read what it was sent


async def test_a_store_that_comes_back_empty_has_no_queues_and_its_leases_are_gone(
    make_store_server: Callable[..., StoreServer], serve: Serve, open_line: Open
) -> None:
    store = make_store_server(durable=False)
    line = await open_line(await serve(store.url), "jobs")
    await line.create()
    await line.put(b"lost with the store")
    lease = (await line.take_one()).lease
    await asyncio.to_thread(store.restart)
    answers = {answer.name: answer async for answer in ask_each(line, lease)}
    assert answers["Get"].error.reason == "QUEUE_NOT_FOUND"
    assert answers["Put"].error.reason == "QUEUE_NOT_FOUND"
    assert answers["Describe"].error.reason == "QUEUE_NOT_FOUND"
    assert await line.ack(lease) == [GONE]
    assert (await line.create()).created
    assert not (await line.get()).deliveries
