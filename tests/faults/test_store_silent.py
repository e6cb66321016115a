"""The store holds its connections and says nothing: every call answers in time, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from faults.conftest import Connect, Open, Serve
from faults.table import (
    BUDGET_S,
    MARGIN_S,
    Answer,
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


async def all_are_told(line: Line, answers: list[Answer]) -> list[Answer]:
    """In time; those at ease. All that came, also late, are added to `answers`."""
    in_a_hurry = ask_all(line, "", timeout=IN_A_HURRY_S, id_="never sent")
    at_ease = ask_all(line, "", id_="never sent")
    hurried, eased = await asyncio.gather(in_a_hurry, at_ease)
    answers.extend(hurried + eased)
    # On a busy machine the last moment before a deadline may pass unused. The next test asks until it does not.
    told = [answer for answer in hurried if answer.error.code is not grpc.StatusCode.DEADLINE_EXCEEDED]
    assert told
    for answer in told:
        assert_not_done_or_unknown(answer, "SILENT", within_s=IN_A_HURRY_S + MARGIN_S)
    for answer in eased:
        assert_not_done_or_unknown(answer, "SILENT")
    return eased


async def server_tells_of_it(line: Line) -> bool:
    """In time."""
    assert line.admin
    asked_at = time.monotonic()
    server = await line.admin.GetServerInfo(admin_service_pb2.GetServerInfoRequest(), timeout=10)
    assert not server.store.reachable
    return time.monotonic() - asked_at < BUDGET_S + MARGIN_S


async def is_alive(channel: grpc.aio.Channel) -> bool:
    """And says so in time."""
    health: Any = health_pb2_grpc.HealthStub(channel)  # its stubs know no aio
    asked_at = time.monotonic()
    alive = await health.Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert alive.status == health_pb2.HealthCheckResponse.SERVING
    return time.monotonic() - asked_at < MARGIN_S


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
    await line.create()

    def set_silent(is_silent: bool) -> None:
        if silent == "wire":
            proxy.silent = is_silent
        elif is_silent:
            fresh_store_server.pause()
        else:
            fresh_store_server.resume()

    # What a pause of the machine makes late, or not be what it is to be, is tried again.
    async def what_was_sent_is_unknown() -> bool:
        """Over a connection that stood before: sent, and no answer. After a pause the service may have noticed the
        silence already, and have none."""
        await eventually(line.counts, within=3.0)
        set_silent(True)
        try:
            assert_unknown(await ask(line, "Put", requests("jobs", "", id_="sent")["Put"], timeout=10), "SILENT")
        except AssertionError:
            set_silent(False)
            raise
        return True

    await eventually(what_was_sent_is_unknown, within=20)

    # Over connections that cannot be made, or hang, too: nothing was sent.
    answers: list[Answer] = []
    eased = await eventually(lambda: all_are_told(line, answers), within=20)
    await eventually(lambda: server_tells_of_it(line), within=20)
    async with connect(service.address) as channel:
        await eventually(lambda: is_alive(channel), within=20)

    figure(f"longest answer while the {silent} is silent", f"{max(one.took_s for one in eased):.3f} s")
    set_silent(False)
    back_at = time.monotonic()

    async def works() -> bool:
        return not any(one.error.code is grpc.StatusCode.UNAVAILABLE for one in await ask_all(line, "", id_="after"))

    await eventually(works, within=3.0)
    figure(f"works after the {silent} speaks again", f"{time.monotonic() - back_at:.3f} s")
    never_sent, after = (await line.put(*known("never sent", "after"), on_duplicate=KEEP)).results
    assert after.deduplicated
    if all(answer.error.reason == "STORE_UNAVAILABLE" for answer in answers if answer.name == "Put"):
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
    asked, told = count(), set()

    async def nothing_happened() -> bool:
        id_ = f"too late {next(asked)}"
        answer = await ask(line, "Put", requests(line.name, "", id_=id_)["Put"], timeout=0.3)
        assert_unavailable(answer, "SILENT")  # else the last moment passed unused, as above: it may happen
        told.add(id_)
        return True

    for _ in range(5):
        proxy.cut(refuse=False)
        proxy.silent = True
        await eventually(nothing_happened, within=20)
        proxy.silent = False
        await eventually(line.counts, within=3.0)
    await line.put(b"a")
    assert told.isdisjoint(peeked.message.id for peeked in await line.peek(100))
