"""The store holds its connections and says nothing: every call answers in time, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from faults.conftest import Connect, Open, Serve
from faults.table import (
    BUDGET_S,
    MARGIN_S,
    ask,
    ask_all,
    assert_not_done_or_unknown,
    assert_unavailable,
    assert_unknown,
    requests,
)
from harness import FaultProxy, StoreServer, eventually
from headway.v1 import admin_service_pb2, message_pb2, queue_service_pb2
from wire.calls import Line

pytestmark = pytest.mark.any_store

KEEP = message_pb2.ON_DUPLICATE_KEEP
IN_A_HURRY_S = 0.5


def known(*ids: str) -> list[message_pb2.Message]:
    """Messages with these ids."""
    return [message_pb2.Message(id=id_, payload=b"once") for id_ in ids]


@pytest.fixture
async def proxy(fresh_store_server: StoreServer) -> AsyncIterator[FaultProxy]:
    """A wire to a store of this test's own."""
    async with FaultProxy(fresh_store_server.port) as wire:
        yield wire


@pytest.mark.parametrize("silent", ["store", "wire"])
async def test_every_call_answers_in_time_while_the_store_is_silent(
    *,
    fresh_store_server: StoreServer,
    proxy: FaultProxy,
    serve: Serve,
    open_line: Open,
    connect: Connect,
    silent: str,
    figure: Callable[[str, str], None],
) -> None:
    service = await serve(proxy.url if silent == "wire" else fresh_store_server.url)
    line = await open_line(service, "jobs")
    assert line.admin
    await line.create()
    if silent == "wire":
        proxy.silent = True
    else:
        fresh_store_server.pause()

    # Over a connection that stood before: sent, and no answer.
    assert_unknown(await ask(line, "Put", requests("jobs", "", id_="sent")["Put"], timeout=10), "SILENT")

    # Over connections that cannot be made, or hang, too: nothing was sent.
    in_a_hurry = ask_all(line, "", timeout=IN_A_HURRY_S, id_="never sent")
    at_ease = ask_all(line, "", id_="never sent")
    hurried, eased = await asyncio.gather(in_a_hurry, at_ease)
    # On a busy machine the last moment before a deadline may pass unused. The next test asks until it does not.
    told = [answer for answer in hurried if answer.error.code is not grpc.StatusCode.DEADLINE_EXCEEDED]
    assert told
    for answer in told:
        assert_not_done_or_unknown(answer, "SILENT", within_s=IN_A_HURRY_S + MARGIN_S)
    for answer in eased:
        assert_not_done_or_unknown(answer, "SILENT")

    server = await line.admin.GetServerInfo(admin_service_pb2.GetServerInfoRequest(), timeout=BUDGET_S + MARGIN_S)
    assert not server.store.reachable
    async with connect(service.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)  # its stubs know no aio
        asked_at = time.monotonic()
        alive = await health.Check(health_pb2.HealthCheckRequest(), timeout=2)
        assert alive.status == health_pb2.HealthCheckResponse.SERVING
        assert time.monotonic() - asked_at < MARGIN_S

    figure(f"longest answer while the {silent} is silent", f"{max(one.took_s for one in eased):.3f} s")
    if silent == "wire":
        proxy.silent = False
    else:
        fresh_store_server.resume()
    back_at = time.monotonic()

    async def works() -> bool:
        return not any(one.error.code is grpc.StatusCode.UNAVAILABLE for one in await ask_all(line, "", id_="after"))

    await eventually(works, within=3.0)
    figure(f"works after the {silent} speaks again", f"{time.monotonic() - back_at:.3f} s")
    never_sent, after = (await line.put(*known("never sent", "after"), on_duplicate=KEEP)).results
    assert after.deduplicated
    if all(answer.error.reason == "STORE_UNAVAILABLE" for answer in hurried + eased if answer.name == "Put"):
        assert not never_sent.deduplicated


@pytest.mark.parametrize("name", ["Describe", "Put", "Get", "Ack"])
async def test_a_call_with_a_short_deadline_is_answered_with_a_reason_before_it(
    line: Line, fresh_store_server: StoreServer, name: str
) -> None:
    await line.create()
    fresh_store_server.pause()
    for timeout in (0.5, 1.0):

        async def is_told(timeout: float = timeout) -> bool:
            # On a busy machine the last moment before the deadline may pass unused: then it is tried again.
            answer = await ask(line, name, requests(line.name, "")[name], timeout=timeout)
            assert_not_done_or_unknown(answer, "SILENT", within_s=timeout)
            return True

        await eventually(is_told, within=10)
    fresh_store_server.resume()


async def test_a_put_repeated_after_a_silence_is_stored_once(line: Line, fresh_store_server: StoreServer) -> None:
    await line.create()
    asked = [
        queue_service_pb2.PutRequest(
            queue=line.name,
            messages=[message_pb2.Message(id=f"{call}-{number}", payload=b"x") for number in range(10)],
            on_duplicate=KEEP,
        )
        for call in range(20)
    ]
    fresh_store_server.pause()
    first = await asyncio.gather(*(ask(line, "Put", request, timeout=10) for request in asked))
    assert {answer.error.code for answer in first} == {grpc.StatusCode.UNAVAILABLE}
    fresh_store_server.resume()
    for request in asked:
        assert all(not result.error.code for result in (await line.stub.Put(request, timeout=10)).results)
    taken = await line.take(200)
    assert len({delivery.message.id for delivery in taken}) == 200
    assert not (await line.get()).deliveries


async def test_a_call_that_was_told_nothing_happened_does_not_happen_later(
    proxy: FaultProxy, serve: Serve, open_line: Open
) -> None:
    """Its time is over while a connection is being made for it; then the connection comes about."""
    line = await open_line(await serve(proxy.url), "jobs")
    await line.create()
    for turn in range(5):
        proxy.cut(refuse=False)
        proxy.silent = True
        request = requests(line.name, "", id_=f"too late {turn}")["Put"]
        assert_unavailable(await ask(line, "Put", request, timeout=0.3), "SILENT")
        proxy.silent = False
        await eventually(line.counts, within=3.0)
    await line.put(b"a")
    assert not [peeked.message.id for peeked in await line.peek(10) if peeked.message.id.startswith("too late")]
