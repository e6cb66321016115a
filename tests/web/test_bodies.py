"""Bodies that are slow to come, or never come: what they keep others from, and what they do not."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness import ServiceProcess, StoreServer
from web.conftest import base_url, http_service

pytestmark = pytest.mark.any_store

LARGE = 8 * 1024 * 1024  # as much as one request may have, and here half of what may come in at a time
SOON_S = 5.0  # half of the time that a body has
PUT = "/headway.v1.QueueService/Put"
DESCRIBE = "/headway.v1.QueueService/Describe"


@pytest.fixture(scope="module")
def narrow_service(store_server: StoreServer, session_dir: Path) -> Iterator[ServiceProcess]:
    folder = session_dir / f"bodies-{store_server.kind}-{uuid.uuid4().hex[:6]}"
    with http_service(store_server, folder, HEADWAY_MAX_HTTP_CONNECTIONS="20") as process:
        yield process


@pytest.fixture
async def http(narrow_service: ServiceProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=base_url(narrow_service), timeout=SOON_S) as client:
        yield client


@pytest.fixture
async def queue(http: httpx.AsyncClient) -> str:
    name = f"bodies-{uuid.uuid4().hex[:8]}"
    assert (await http.put(f"/queues/{name}")).is_success
    return name


@asynccontextmanager
async def claimed(
    service: ServiceProcess, queue: str, size: int | None, sent: bytes = b"x"
) -> AsyncIterator[asyncio.StreamReader]:
    """A request that says so much of its body (None: that it comes in chunks), and sends this of it."""
    url = httpx.URL(base_url(service))
    reader, writer = await asyncio.open_connection(url.host, url.port)
    length = "transfer-encoding: chunked" if size is None else f"content-length: {size}"
    head = f"POST /queues/{queue}/messages HTTP/1.1\r\nhost: {url.host}:{url.port}\r\n{length}\r\n\r\n"
    writer.write(head.encode() + (b"%x\r\n%b\r\n" % (len(sent), sent) if size is None else sent))
    await writer.drain()
    await asyncio.sleep(0.2)  # it is read by then
    try:
        yield reader
    finally:
        writer.close()


async def describe(http: httpx.AsyncClient, queue: str, **more: Any) -> httpx.Response:
    return await http.post(DESCRIBE, json={"queue": queue} | more)


@pytest.mark.parametrize("size", [LARGE, 99_999_999])
async def test_a_large_body_that_does_not_come_keeps_no_call_waiting(
    narrow_service: ServiceProcess, http: httpx.AsyncClient, queue: str, size: int
) -> None:
    async with claimed(narrow_service, queue, size), claimed(narrow_service, queue, size):
        assert (await describe(http, queue)).is_success
        assert (await http.post(f"/queues/{queue}/messages", content=b"job")).status_code == 201
        assert (await http.get(f"/queues/{queue}/messages")).content == b"job"
        waiting = await http.get(f"/queues/{queue}/messages", params={"wait": "0.2"})
        assert waiting.status_code == 503


async def test_more_than_a_body_may_have_keeps_no_large_one_waiting(
    narrow_service: ServiceProcess, http: httpx.AsyncClient, queue: str
) -> None:
    async with claimed(narrow_service, queue, 99_999_999):
        assert (await http.post(f"/queues/{queue}/messages", content=bytes(500_000))).status_code == 201


@pytest.mark.parametrize("size", [LARGE, None])
async def test_a_large_body_that_does_not_come_keeps_no_other_one_waiting(
    narrow_service: ServiceProcess, http: httpx.AsyncClient, queue: str, size: int | None
) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(5):
            await stack.enter_async_context(claimed(narrow_service, queue, size))
        for _ in range(3):
            assert (await http.post(f"/queues/{queue}/messages", content=bytes(500_000))).status_code == 201


async def test_large_bodies_in_each_others_way_all_come_in(http: httpx.AsyncClient, queue: str) -> None:
    """What they have together is twice what may come in at a time."""

    async def put() -> int:
        return (await http.post(f"/queues/{queue}/messages", content=bytes(LARGE), timeout=30)).status_code

    answers = await asyncio.gather(*(put() for _ in range(4)))
    assert answers == [413] * 4  # what the call says of such a message


async def read(events: httpx.Response) -> str:
    """The first event that tells of a lease."""
    async for line in events.aiter_lines():
        if "leased" in line:
            return line
    raise AssertionError("the stream has ended")


@pytest.mark.long
async def test_who_waits_without_a_body_is_not_taken_for_gone(
    narrow_service: ServiceProcess, http: httpx.AsyncClient, queue: str
) -> None:
    """Nor does a stream end that is told something for longer than a body may take."""

    async def claims() -> None:
        while True:
            async with claimed(narrow_service, queue, LARGE) as reader:
                await reader.read()

    empty = f"{queue}-empty"
    assert (await http.put(f"/queues/{empty}")).is_success
    put = await http.post(PUT, json={"queue": queue, "messages": [{"id": "job"}]})
    assert put.is_success
    holding = asyncio.gather(claims(), claims())
    try:
        await asyncio.sleep(0.5)
        async with http.stream("GET", f"/queues/{queue}/events", params={"id": "job"}, timeout=30) as events:
            reading = asyncio.create_task(read(events))
            waited = await http.get(f"/queues/{empty}/messages", params={"wait": "13"}, timeout=30)
            assert waited.status_code == 503  # nothing came; 408 would mean that the client had gone
            assert not reading.done()
            assert (await http.get(f"/queues/{queue}/messages")).is_success
            assert "leased" in await asyncio.wait_for(reading, SOON_S)
    finally:
        holding.cancel()


@pytest.mark.long
async def test_a_large_body_waits_for_its_turn_behind_what_has_come(
    narrow_service: ServiceProcess, http: httpx.AsyncClient, queue: str
) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(claimed(narrow_service, queue, LARGE, bytes(LARGE - 1)))
        put = asyncio.create_task(http.post(f"/queues/{queue}/messages", content=bytes(500_000), timeout=30))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(put), SOON_S)
        assert (await put).status_code == 201
