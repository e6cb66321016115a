"""Server-sent events: what WatchPosition tells, for who has an EventSource or `curl`, resumed without a memory."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from harness import ServiceProcess, eventually
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Progress
from web.conftest import ORIGIN, base_url
from web.sse import Event, watching
from wire.calls import SLACK_S, Line, Message, span

DONE = pb.Outcome.Name(pb.OUTCOME_DONE)


def ends(event: Event) -> bool:
    return event.name == "finished"


async def put(line: Line, *ids: str) -> None:
    await line.put(*(Message(id=each, payload=b"work") for each in ids))


async def finish(line: Line, result: bytes = b"") -> str:
    """Takes and acks the message at the head; its id."""
    delivery = await line.take_one()
    await line.ack(delivery.lease, result=result)
    return delivery.message.id


async def is_watched(http: httpx.AsyncClient, count: int) -> bool:
    """Whether so many streams watch, as the service counts them."""
    text = (await http.get("/metrics")).text
    (row,) = (row for row in text.splitlines() if row.startswith("headway_watchers"))
    return float(row.rpartition(" ")[2]) == count


# -- what is told -----------------------------------------------------------------------------------------------------


async def test_a_message_is_followed_to_its_end(http: httpx.AsyncClient, line: Line) -> None:
    await put(line, "one", "two")
    async with watching(http, line.name, "two") as events:
        assert events.response.headers["content-type"].startswith("text/event-stream")
        assert events.response.headers["cache-control"] == "no-store"
        assert events.response.headers["x-accel-buffering"] == "no"
        first = await events.next()
        assert first.name == "position"
        assert first.data["position"]["id"] == "two"
        assert (first.data["position"]["position"], first.data["position"]["length"]) == ("2", "2")
        assert events.retry_ms is not None

        await finish(line)
        moved = await events.next()
        assert (moved.name, moved.data["position"]["position"]) == ("position", "1")

        delivery = await line.take_one()
        leased = await events.next()
        assert (leased.name, leased.data["leased"]["attempt"]) == ("leased", 1)
        await line.stub.Extend(
            pb.ExtendRequest(
                queue=line.name,
                leases=[delivery.lease],
                lease=span(20_000),
                progress=Progress(fraction=0.5, note="half"),
            )
        )
        told = await events.next()
        assert told.data["leased"]["progress"] == {"fraction": 0.5, "note": "half"}

        await line.ack(delivery.lease, result=b"\x00done")
        end = await events.next()
        assert (end.name, end.data["finished"]) == ("finished", {"id": "two", "outcome": DONE, "result": "AGRvbmU="})
        assert await events.rest() == []


async def test_many_are_watched_on_one_stream_by_a_body(http: httpx.AsyncClient, line: Line) -> None:
    ids = [f"job {n}" for n in range(1_000)]
    await put(line, *ids)
    async with http.stream("POST", f"/queues/{line.name}/events", json={"ids": ids}) as response:
        told = []
        async for row in response.aiter_lines():
            if row.startswith("data: "):
                told.append(json.loads(row.removeprefix("data: "))["position"]["id"])
            if len(told) == len(ids):
                break
    assert sorted(told) == sorted(ids)


async def test_a_name_with_slashes_is_a_queue_like_any_other(http: httpx.AsyncClient, line: Line) -> None:
    line.name = f"a/b c/{line.name}/events"
    await line.create()
    await put(line, "ä&b")
    async with watching(http, line.name.replace(" ", "%20"), "ä&b") as events:
        assert (await events.next()).data["position"]["id"] == "ä&b"


# -- resuming ---------------------------------------------------------------------------------------------------------


async def test_who_comes_back_is_not_told_ends_again(http: httpx.AsyncClient, line: Line) -> None:
    ids = ("one", "two", "three")
    await put(line, *ids)
    async with watching(http, line.name, *ids) as events:
        await finish(line)
        last_id = (await events.next(ends)).id
    async with watching(http, line.name, *ids, last_event_id=last_id) as events:
        assert {(await events.next()).data["position"]["id"] for _ in range(2)} == {"two", "three"}
        await finish(line)
        await finish(line)
        told = {(await events.next(ends)).data["finished"]["id"] for _ in range(2)}
        assert told == {"two", "three"}
        assert await events.rest() == []
        last_id = events.last_id
    async with watching(http, line.name, *ids, last_event_id=last_id) as events:
        assert events.response.status_code == httpx.codes.NO_CONTENT


async def test_what_ended_meanwhile_is_told_to_who_comes_back(http: httpx.AsyncClient, line: Line) -> None:
    await put(line, "one", "two")
    async with watching(http, line.name, "one", "two") as events:
        await finish(line)
        last_id = (await events.next(ends)).id
    await finish(line, b"result")
    async with watching(http, line.name, "one", "two", last_event_id=last_id) as events:
        told = await events.rest()
        assert [event.data["finished"]["id"] for event in told] == ["two"]


@pytest.mark.parametrize("spoil", ["", "x", "{}.", "{}.!!", "{}.____________", "{}", "another"])
async def test_an_event_id_of_another_request_is_ignored(http: httpx.AsyncClient, line: Line, spoil: str) -> None:
    await put(line, "one", "two")
    await finish(line)
    async with watching(http, line.name, "one", "two") as events:
        true_id = (await events.next(ends)).id
    ids = ("two", "one") if spoil == "another" else ("one", "two")
    wrong = true_id if spoil == "another" else spoil.format(true_id.partition(".")[0])
    async with watching(http, line.name, *ids, last_event_id=wrong) as events:
        told = {(await events.next()).name for _ in range(2)}
        assert told == {"finished", "position"}


# -- errors -----------------------------------------------------------------------------------------------------------


async def test_an_unknown_queue_is_not_found(http: httpx.AsyncClient) -> None:
    response = await http.get("/queues/nowhere/events", params={"id": "one"})
    assert response.status_code == httpx.codes.NOT_FOUND
    told = response.json()
    assert (told["code"], told["reason"]) == ("not_found", "QUEUE_NOT_FOUND")
    assert "nowhere" in told["message"]


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ([], "FIELD_INVALID"),
        (["one", "one"], "FIELD_INVALID"),
        (["x" * 201], "FIELD_INVALID"),
        ([f"{n}" for n in range(10_001)], "TOO_LARGE"),
        (["\ud800"], "FIELD_INVALID"),
    ],
    ids=["none", "twice", "long", "many", "half a letter"],
)
async def test_ids_that_are_not_proper_are_refused(
    http: httpx.AsyncClient, line: Line, ids: list[str], reason: str
) -> None:
    body = json.dumps({"ids": ids})
    response = await http.post(
        f"/queues/{line.name}/events", content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == (413 if reason == "TOO_LARGE" else 400)
    assert response.json()["reason"] == reason


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"ids": "one"}', b'{"ids": [1]}', b'{"ids": ["one"], "attended": true}', b"[" * 9_999]
)
async def test_a_body_that_is_none_is_refused(http: httpx.AsyncClient, line: Line, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    response = await http.post(f"/queues/{line.name}/events", content=body, headers=headers)
    assert (response.status_code, response.json()["reason"]) == (400, "FIELD_INVALID")


async def test_a_body_that_is_too_large_is_refused_with_its_reason(http: httpx.AsyncClient, line: Line) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(9):
            yield bytes(1024 * 1024)

    headers = {"content-type": "application/json"}
    for content in (bytes(9 * 1024 * 1024), chunks()):
        response = await http.post(f"/queues/{line.name}/events", content=content, headers=headers)
        assert (response.status_code, response.json().get("reason")) == (413, "TOO_LARGE")
        assert response.json()["metadata"].keys() == {"field", "limit", "size"}


async def test_a_form_is_no_body(http: httpx.AsyncClient, line: Line) -> None:
    response = await http.post(f"/queues/{line.name}/events", data={"ids": "one"})
    assert response.status_code == httpx.codes.UNSUPPORTED_MEDIA_TYPE


async def test_leaving_a_stream_ends_its_watch_and_withdraws_nothing(http: httpx.AsyncClient, line: Line) -> None:
    """Also if it asks for it: a picture of a page elsewhere could do that."""
    await put(line, "one")
    url = f"/queues/{line.name}/events?id=one&attended=true&messages.attended=true"
    async with http.stream("GET", url) as response:
        assert response.status_code == httpx.codes.OK
        await eventually(lambda: is_watched(http, 1), within=20)
    await eventually(lambda: is_watched(http, 0), within=20)
    assert (await line.counts()).length == 1


# -- the service's own life, and readers in trouble -------------------------------------------------------------------


async def test_a_service_that_goes_down_sends_readers_back_later(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service(HEADWAY_HTTP_LISTEN="127.0.0.1:0")
    async with httpx.AsyncClient(base_url=base_url(service), timeout=SLACK_S) as http:
        for call, body in (("Create", {"queue": "q"}), ("Put", {"queue": "q", "messages": [{"id": "one"}]})):
            await http.post(f"/headway.v1.QueueService/{call}", json=body)
        async with watching(http, "q", "one") as events:
            assert (await events.next()).name == "position"
            stopping = asyncio.ensure_future(asyncio.to_thread(service.stop))
            (trouble,) = await events.rest()
            assert trouble.name == "trouble"
            assert (trouble.data["code"], trouble.data["reason"]) == ("unavailable", "SHUTTING_DOWN")
            assert events.retry_ms == trouble.data["retryMs"] >= 1_000
        assert await stopping == 0


async def test_trouble_that_passes_is_an_event_to_an_event_source_and_a_status_to_others(
    make_service: Callable[..., ServiceProcess],
) -> None:
    """It never comes back from a status."""
    service = make_service(HEADWAY_HTTP_LISTEN="127.0.0.1:0", HEADWAY_MAX_RUNNING_CALLS="10")  # 9 streams
    async with httpx.AsyncClient(base_url=base_url(service), timeout=SLACK_S) as http:
        for call, body in (("Create", {"queue": "q"}), ("Put", {"queue": "q", "messages": [{"id": "one"}]})):
            await http.post(f"/headway.v1.QueueService/{call}", json=body)
        async with AsyncExitStack() as stack:
            opened = [await stack.enter_async_context(watching(http, "q", "one")) for _ in range(9)]
            for events in opened:
                assert (await events.next()).name == "position"
            async with watching(http, "q", "one") as refused:
                (trouble,) = await refused.rest()
                assert (trouble.name, trouble.data["reason"]) == ("trouble", "OVERLOADED")
            response = await http.get("/queues/q/events", params={"id": "one"})
            assert response.status_code == httpx.codes.SERVICE_UNAVAILABLE
            assert response.headers["retry-after"] == "1"


async def test_a_reader_that_was_slow_gets_the_latest_and_no_backlog(web_service: ServiceProcess, line: Line) -> None:
    """What is told at first fills all buffers. Then every message is taken and finished, and only that is told."""
    ids = [f"{n:0>200}" for n in range(2_000)]
    await put(line, *ids[:1_000])
    await put(line, *ids[1_000:])
    host, _, port = base_url(web_service).removeprefix("http://").rpartition(":")
    with socket.socket() as narrow:
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
        narrow.setblocking(False)
        await asyncio.get_running_loop().sock_connect(narrow, (host, int(port)))
        reader, writer = await asyncio.open_connection(sock=narrow, limit=1_024)
        body = json.dumps({"ids": ids}).encode()
        head = f"POST /queues/{line.name}/events HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n"
        writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + body)
        await reader.readuntil(b"event: ")
        for _ in range(20):
            deliveries = await line.take(100, lease_ms=60_000)
            await line.ack(*(delivery.lease for delivery in deliveries))
        told = bytearray()
        async with asyncio.timeout(60):
            while not told.endswith(b"0\r\n\r\n"):
                told += await reader.read(100_000)
        writer.close()
    assert told.count(b"event: finished") == len(ids)
    assert told.count(b"event: leased") < len(ids) / 4


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the timers of connections on Linux only")
async def test_a_reader_that_vanished_is_noticed(make_service: Callable[..., ServiceProcess]) -> None:
    """Its machine sends nothing any more, not even that it has gone: the service's side asks now and then."""
    service = make_service(HEADWAY_HTTP_LISTEN="127.0.0.1:0", HEADWAY_KEEPALIVE="5s", HEADWAY_KEEPALIVE_TIMEOUT="2s")
    host, _, port = base_url(service).removeprefix("http://").rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    theirs = writer.get_extra_info("sockname")[1]

    def is_asked() -> bool:
        rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        timers = [row[5].split(":") for row in rows if (_port(row[1]), _port(row[2])) == (int(port), theirs)]
        return [(kind, int(rest, 16) <= 5 * 100) for kind, rest in timers] == [("02", True)]  # keep-alive

    await eventually(is_asked, within=10)
    writer.close()


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


# -- pages of other sites ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("origin", "may"), [(ORIGIN, True), ("https://evil.example", False)])
async def test_only_pages_of_known_sites_may_read_events(http: httpx.AsyncClient, origin: str, *, may: bool) -> None:
    asked = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,last-event-id",
    }
    response = await http.options("/queues/q/events", headers=asked)
    assert (response.headers.get("access-control-allow-origin") == origin) is may
    script = await http.get("/place.js", headers={"origin": origin})
    assert (script.headers.get("access-control-allow-origin") == origin) is may
