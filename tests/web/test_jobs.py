"""Jobs by the verbs of RQMS: put, set, taken and finished by whoever has nothing but HTTP."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from harness import ServiceProcess, eventually
from harness.proxy import FaultProxy
from headway.v1 import queue_service_pb2 as pb
from web.conftest import base_url
from wire.calls import SLACK_S, Line, Message

JSON = {"content-type": "application/json"}
GONE_S = 5.0  # in which a caller's leaving takes effect; a lease would last 30 s


@pytest.fixture
def jobs(line: Line) -> str:
    """The path of the queue's messages."""
    return f"/queues/{line.name}/messages"


async def take(http: httpx.AsyncClient, jobs: str, **query: Any) -> list[dict[str, Any]]:
    """A list of jobs."""
    answer = await http.get(jobs, params={"count": 1, **query})
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def reason(answer: httpx.Response) -> tuple[int, str]:
    """How it was refused."""
    return answer.status_code, answer.json().get("reason", "")


# -- a job's life -----------------------------------------------------------------------------------------------------


async def test_a_job_is_put_taken_and_finished_with_its_ticket(http: httpx.AsyncClient, jobs: str, line: Line) -> None:
    put = await http.post(jobs, content=b"Hello", params={"id": "ada"})
    assert (put.status_code, put.json()) == (201, {"id": "ada", "position": 1})
    assert put.headers["location"] == f"{jobs}/ada"
    (item,) = await take(http, jobs, time=30)
    assert (item["id"], item["value"], item["attempt"]) == ("ada", "Hello", 1)
    assert await take(http, jobs) == []
    done = await http.request("DELETE", jobs, content=item["ticket"])
    assert (done.status_code, done.json()) == (200, {"settled": "ACKED"})
    again = await http.request("DELETE", jobs, content=json.dumps(item["ticket"]), headers=JSON)
    assert (again.status_code, again.json()) == (200, {"settled": "ALREADY_ACKED"})
    assert (await line.counts()).acked == 1


class Rqms:
    """What RQMS's own client sends and expects (`rqms.py` of natevw/RQMS)."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self.http, self.url = http, url

    async def put(self, item: object) -> None:
        """Puts a job."""
        answer = await self.http.post(self.url, content=json.dumps(item), headers=JSON)
        assert answer.status_code == 201

    async def get(self) -> list[tuple[str, Any]]:
        """Takes up to two."""
        answer = await self.http.get(f"{self.url}?count=2&time={30.0:f}")
        assert answer.status_code == 200
        return [(item["ticket"], item["value"]) for item in answer.json()["items"]]

    async def done(self, ticket: str) -> int:
        """Finishes one."""
        return (await self.http.request("DELETE", self.url, content=ticket, headers=JSON)).status_code


async def test_the_client_of_rqms_is_served(http: httpx.AsyncClient, jobs: str, line: Line) -> None:
    rqms = Rqms(http, jobs)
    await rqms.put({"a": [1, 2.5, None, "é"]})
    await rqms.put("two")
    (first, one), (second, two) = await rqms.get()
    assert (one, two) == ({"a": [1, 2.5, None, "é"]}, "two")
    assert await rqms.get() == []
    assert [await rqms.done(first), await rqms.done(second)] == [200, 200]
    assert (await line.counts()).acked == 2


async def test_a_named_job_is_set_anew_and_the_ticket_before_is_too_late(
    http: httpx.AsyncClient, jobs: str, line: Line
) -> None:
    assert (await http.put(f"{jobs}/index", content=b"1")).status_code == 201
    assert (await http.put(f"{jobs}/index", content=b"2")).status_code == 201
    (item,) = await take(http, jobs)
    assert item["value"] == "2"
    assert (await http.put(f"{jobs}/index", content=b"3")).status_code == 201
    late = await http.request("DELETE", jobs, content=item["ticket"])
    assert reason(late) == (409, "LEASE_STALE")
    assert [each["value"] for each in await take(http, jobs)] == ["3"]
    assert (await line.counts()).acked == 0


async def test_an_id_that_is_known_is_409_and_changes_nothing(http: httpx.AsyncClient, jobs: str, line: Line) -> None:
    assert (await http.post(f"{jobs}/ada", content=b"1")).status_code == 201
    assert reason(await http.post(f"{jobs}/ada", content=b"2")) == (409, "DUPLICATE_MESSAGE")
    assert reason(await http.post(jobs, params={"id": "ada"}, content=b"2")) == (409, "DUPLICATE_MESSAGE")
    assert [each["value"] for each in await take(http, jobs, count=10)] == ["1"]


@pytest.mark.parametrize("name", ["events", "messages"])
async def test_a_job_may_have_the_name_of_a_door(http: httpx.AsyncClient, jobs: str, name: str) -> None:
    assert (await http.post(f"{jobs}/{name}", content=b"1")).json()["id"] == name
    assert (await http.put(f"{jobs}/{name}", content=b"2")).json()["id"] == name
    assert [(each["id"], each["value"]) for each in await take(http, jobs, count=10)] == [(name, "2")]


async def test_an_id_that_is_no_text_puts_nothing(http: httpx.AsyncClient, jobs: str, line: Line) -> None:
    for path in (f"{jobs}/%ff", f"{jobs}?id=%ff", f"{jobs}?id=", f"{jobs}/%00", f"{jobs}?id=a&id=b"):
        assert reason(await http.post(path, content=b"1")) == (400, "FIELD_INVALID"), path
    assert (await line.counts()).length == 0


async def test_a_result_goes_to_who_watches(http: httpx.AsyncClient, jobs: str, line: Line) -> None:
    await http.post(f"{jobs}/ada", content=b"1")
    (item,) = await take(http, jobs)
    done = await http.request("DELETE", jobs, params={"ticket": item["ticket"]}, content=b"\x00done")
    assert done.status_code == 200
    assert await outcome(line, "ada") == b"\x00done"


async def outcome(line: Line, message_id: str) -> bytes:
    """What a watcher of a finished message is told."""
    request = pb.WatchPositionRequest(queue=line.name, messages=pb.MessageIds(ids=[message_id]))
    async for told in line.stub.WatchPosition(request, timeout=SLACK_S):
        if told.WhichOneof("event") == "finished":
            return told.finished.result
    raise AssertionError("no end")


@pytest.mark.parametrize(
    ("payload", "kind", "told"),
    [
        (b"Hello", None, {"value": "Hello"}),
        (b"", None, {"value": ""}),
        ("Grüße".encode(), "text/plain; charset=utf-8", {"value": "Grüße"}),
        (b'{"a": 1e400, "b": 12345678901234567890}', "application/json", None),
        (b'"\\ud800"', "application/vnd.x+json", None),
        (b"\x00\xff", "image/png", {"base64": base64.b64encode(b"\x00\xff").decode()}),
        (b"[1]", "application/x-www-form-urlencoded", {"value": "[1]"}),
    ],
    ids=repr,
)
async def test_a_payload_comes_back_as_it_was_with_its_type(
    http: httpx.AsyncClient, jobs: str, *, payload: bytes, kind: str | None, told: dict[str, str] | None
) -> None:
    for _ in range(2):
        answer = await http.post(jobs, content=payload, headers={} if kind is None else {"content-type": kind})
        assert answer.status_code == 201
    answer = await http.get(jobs, params={"count": 1})
    if told is None:
        assert b'"value":' + payload + b"}]}" in answer.content
    else:
        assert told.items() <= answer.json()["items"][0].items()
    raw = await http.get(jobs)
    assert (raw.status_code, raw.content) == (200, payload)
    is_said = kind is not None and "form" not in kind
    assert raw.headers["content-type"] == (kind if is_said else "application/octet-stream")
    assert raw.headers["headway-attempt"] == "1"
    assert (await http.request("DELETE", jobs, content=raw.headers["headway-ticket"])).status_code == 200


async def test_no_browser_shows_a_payload_as_a_page_of_the_service(
    http: httpx.AsyncClient, jobs: str, line: Line
) -> None:
    await line.put(Message(payload=b"<script>", headers={"content-type": "text/html"}))
    await line.put(Message(id="é/", payload=b"x", headers={"content-type": "text/html\r\nset-cookie: a=b"}))
    raw = await http.get(jobs)
    assert raw.headers["content-type"] == "text/html"
    assert "sandbox" in raw.headers["content-security-policy"]
    assert raw.headers["x-content-type-options"] == "nosniff"
    assert raw.headers["content-disposition"] == "attachment"
    assert raw.headers["cache-control"] == "no-store"
    raw = await http.get(jobs)
    assert raw.headers["content-type"] == "application/octet-stream"
    assert "set-cookie" not in raw.headers
    assert raw.headers["headway-id"] == "%C3%A9%2F"


async def test_a_lease_lasts_as_long_as_was_asked_for(http: httpx.AsyncClient, jobs: str, line: Line) -> None:
    await line.put(b"1")
    (item,) = await take(http, jobs, time=0.2)
    (again,) = await take(http, jobs, wait=20)
    assert (item["attempt"], again["attempt"]) == (1, 2)
    assert again["ticket"] != item["ticket"]


# -- waiting ----------------------------------------------------------------------------------------------------------


async def test_a_take_that_waits_gets_what_comes(http: httpx.AsyncClient, jobs: str, line: Line) -> None:
    waiting = asyncio.ensure_future(http.get(jobs, params={"wait": 30}, timeout=40))
    await eventually(lambda: waits(line), within=SLACK_S)
    assert (await http.post(jobs, content=b"now")).status_code == 201
    assert (await waiting).content == b"now"


async def waits(line: Line) -> bool:
    """Whether a consumer waits."""
    return (await line.counts()).consumers_waiting > 0


@pytest.mark.parametrize("query", [{"wait": 30}, {"wait": 30, "count": 2}], ids=repr)
async def test_who_hangs_up_while_it_waits_leaves_the_line_and_takes_nothing(
    http: httpx.AsyncClient, jobs: str, line: Line, query: dict[str, int]
) -> None:
    waiting = asyncio.ensure_future(http.get(jobs, params=query, timeout=40))
    await eventually(lambda: waits(line), within=SLACK_S)
    waiting.cancel()

    async def has_left() -> bool:
        return not await waits(line)

    await eventually(has_left, within=GONE_S)
    await line.put(b"job")
    assert (await line.take_one()).attempt == 1


async def test_whoever_hangs_up_as_its_job_comes_does_not_keep_it(
    http: httpx.AsyncClient, jobs: str, line: Line, web_service: ServiceProcess
) -> None:
    host, port = base_url(web_service).removeprefix("http://").split(":")
    for _ in range(30):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {jobs}?wait=30 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        await writer.drain()
        putting = asyncio.ensure_future(http.post(jobs, content=b"job"))
        writer.transport.abort()
        assert (await putting).status_code == 201
        # Either it never was leased, or it came back; what was sent on its way to the client lapses, and is not that.
        delivery = await line.take_one(wait_ms=5_000)
        assert delivery.attempt == 1
        await line.ack(delivery.lease)


async def test_a_put_into_a_full_queue_is_503_and_says_when_to_come_again_or_waits(
    http: httpx.AsyncClient, jobs: str, line: Line
) -> None:
    await line.update(bound=1)
    assert (await http.post(jobs, content=b"1")).status_code == 201
    full = await http.post(jobs, content=b"2", headers={"x-queue": "0.1"})
    assert reason(full) == (503, "QUEUE_FULL")
    assert full.headers["retry-after"] == "1"
    assert full.json()["retry_after"] == 1
    assert "x-queue" not in full.headers  # there is no place for who does not wait
    waiting = asyncio.ensure_future(http.post(jobs, content=b"3", params={"wait": 30}, timeout=40))

    async def is_blocked() -> bool:
        return (await line.counts()).producers_waiting == 1

    await eventually(is_blocked, within=SLACK_S)
    await line.take_one()
    assert (await waiting).status_code == 201


async def test_who_hangs_up_while_its_put_waits_has_put_nothing(http: httpx.AsyncClient, jobs: str, line: Line) -> None:
    await line.update(bound=1)
    await line.put(b"1")
    waiting = asyncio.ensure_future(http.post(jobs, content=b"2", params={"wait": 30}, timeout=40))

    async def blocked() -> int:
        return (await line.counts()).producers_waiting

    await eventually(blocked, within=SLACK_S)
    waiting.cancel()

    async def has_left() -> bool:
        return not await blocked()

    await eventually(has_left, within=GONE_S)
    await line.take_one()
    assert (await line.counts()).length == 0


# -- queues -----------------------------------------------------------------------------------------------------------


async def test_a_queue_is_made_by_its_name(http: httpx.AsyncClient, line: Line) -> None:
    path = f"/queues/{line.name}-made"
    assert reason(await http.post(f"{path}/messages", content=b"1")) == (404, "QUEUE_NOT_FOUND")
    made = await http.put(path, content=b'{"bound": 7, "lease": "5s"}')
    assert (made.status_code, made.json()["policy"]["bound"]) == (201, 7)
    assert (await http.put(path, content=b'{"bound": 7, "lease": "5s"}')).status_code == 200
    assert reason(await http.put(path, content=b'{"bound": 8}')) == (409, "QUEUE_EXISTS")
    assert (await http.put(f"{path}-plain")).status_code == 201
    assert (await http.post(f"{path}/messages", content=b"1")).status_code == 201


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b"7", b'"x"', b'{"bund": 7}', b'{"bound": -1}', b"\xff", b"[" * 5_000, b'{}, "queue": "x"'],
    ids=repr,
)
async def test_a_policy_that_is_none_makes_no_queue(http: httpx.AsyncClient, line: Line, body: bytes) -> None:
    answer = await http.put(f"/queues/{line.name}-none", content=body)
    assert reason(answer) == (400, "FIELD_INVALID")
    assert (await http.get(f"/queues/{line.name}-none/messages")).status_code == 404


@pytest.mark.parametrize(
    "name", ["a/b", "ä ö", "..", ".", "a%2Fb", "messages", "events", "/events", "a?b#c", "q&x=1", "😀"]
)
async def test_names_are_one_segment_each_whatever_is_in_them(http: httpx.AsyncClient, line: Line, name: str) -> None:
    queue, path = f"{line.name}{name}", f"/queues/{quote(line.name + name, safe='')}"
    assert (await http.put(path)).json()["name"] == queue
    put = await http.post(f"{path}/messages/{quote('x' + name, safe='')}", content=b"1")
    assert (put.status_code, put.json()["id"]) == (201, f"x{name}")
    assert [each["id"] for each in await take(http, f"{path}/messages")] == [f"x{name}"]
    assert put.headers["location"].startswith(f"{path}/messages/")


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("/queues//messages", (400, "NAME_REFUSED")),
        ("/queues/a%00b/messages", (400, "NAME_REFUSED")),
        ("/queues/a%0Ab/messages", (400, "NAME_REFUSED")),
        (f"/queues/{'a' * 201}/messages", (400, "NAME_REFUSED")),
        ("/queues/%FF/messages", (400, "FIELD_INVALID")),
        ("/queues/a%/messages", (404, "QUEUE_NOT_FOUND")),
    ],
)
async def test_names_that_are_none_are_refused(http: httpx.AsyncClient, path: str, refused: tuple[int, str]) -> None:
    assert reason(await http.get(path)) == refused
    assert reason(await http.post(path, content=b"1")) == refused


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        "count=0",
        "count=-1",
        "count=x",
        "count=1.5",
        "count=+1",
        "count=٣",
        "count=1001",
        "count=99999999999999999999",
        "count=",
        "time=0",
        "time=-1",
        "time=0.05",
        "time=43201",
        "time=1e3",
        "time=nan",
        "time=inf",
        "wait=3601",
        "wait=1s",
        "cuont=1",
        "count=1&count=2",
    ],
)
async def test_numbers_that_are_none_are_refused_and_nothing_is_taken(
    http: httpx.AsyncClient, jobs: str, line: Line, query: str
) -> None:
    await line.put(b"1")
    assert reason(await http.get(f"{jobs}?{query}")) == (400, "FIELD_INVALID")
    assert (await line.counts()).length == 1


@pytest.mark.parametrize(
    "ticket", [b"", b" ", b"\xff", b"7x" * 3_000, b'"open', b'""', b"{}"], ids=lambda each: repr(each[:8])
)
async def test_what_is_no_ticket_finishes_nothing(http: httpx.AsyncClient, jobs: str, ticket: bytes) -> None:
    answer = await http.request("DELETE", jobs, content=ticket)
    assert reason(answer) in {(400, "FIELD_INVALID"), (404, "LEASE_GONE")}


async def test_tickets_that_have_no_say_are_404_or_409(http: httpx.AsyncClient, jobs: str, line: Line) -> None:
    await line.put(b"1")
    (item,) = await take(http, jobs)
    elsewhere = jobs.replace(line.name, f"{line.name}-other")
    assert reason(await http.request("DELETE", elsewhere, content=item["ticket"])) == (404, "LEASE_GONE")
    await line.delay(item["ticket"], delay_ms=0, keep_attempt=True)
    assert reason(await http.request("DELETE", jobs, content=item["ticket"])) == (409, "LEASE_STALE")


async def test_what_says_it_is_json_must_be(http: httpx.AsyncClient, jobs: str, line: Line) -> None:
    for body in (b"{", b"", b"NaN", b"\xff", b"[" * 50_000):
        assert reason(await http.post(jobs, content=body, headers=JSON)) == (400, "FIELD_INVALID"), body[:8]
    assert (await line.counts()).length == 0


async def test_json_of_strangers_is_not_read_where_it_is_too_much(
    http: httpx.AsyncClient, jobs: str, line: Line
) -> None:
    """A few megabytes of it took hundreds, before it was known who asks. None of these is JSON, which nobody finds."""
    dense = b"[" + b"{}," * 600_000
    assert reason(await http.post(jobs, content=dense, headers=JSON)) == (413, "TOO_LARGE")  # than a message may be
    for answer in (
        await http.put(f"/queues/{line.name}", content=dense, headers=JSON),
        await http.post(f"/queues/{line.name}/events", content=dense, headers=JSON),
    ):
        assert reason(answer) == (413, "TOO_LARGE")
        assert "has 1200001 objects, lists and commas" in answer.text


async def test_what_is_too_large_is_413(http: httpx.AsyncClient, jobs: str, line: Line) -> None:
    for size in (1024 * 1024 + 1, 7 * 1024 * 1024, 9 * 1024 * 1024):
        assert reason(await http.post(jobs, content=bytes(size))) == (413, "TOO_LARGE")

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(12):
            yield bytes(1024 * 1024)

    assert reason(await http.post(jobs, content=endless())) == (413, "TOO_LARGE")
    for content, least in ((bytes(9 * 1024 * 1024), 9 * 1024 * 1024), (endless(), 8 * 1024 * 1024 + 1)):
        told = (await http.post(jobs, content=content)).json()["metadata"]
        assert (told["field"], told["limit"]) == ("request", str(8 * 1024 * 1024))
        assert least <= int(told["size"]) <= 9 * 1024 * 1024  # of what comes in chunks as much as was read
    assert (await line.counts()).length == 0
    assert (await http.post(jobs, content=bytes(1024 * 1024))).status_code == 201


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("HEAD", "/messages", 405, "GET, POST, DELETE"),  # it must not take a job
        ("PATCH", "/messages", 405, "GET, POST, DELETE"),
        ("GET", "/messages/x", 405, "POST, PUT"),
        ("DELETE", "/messages/x", 405, "POST, PUT"),
        ("GET", "", 405, "PUT"),
        ("GET", "/messages/", 405, "POST, PUT"),
        ("POST", "/messages/", 400, None),
        ("GET", "/message", 404, None),
        ("GET", "/messages/x/y", 404, None),
        ("GET", "/", 404, None),
    ],
)
async def test_what_is_no_verb_has_its_status(
    http: httpx.AsyncClient, line: Line, *, method: str, path: str, status: int, allow: str | None
) -> None:
    await line.put(b"1")
    answer = await http.request(method, f"/queues/{line.name}{path}")
    assert (answer.status_code, answer.headers.get("allow")) == (status, allow)
    assert (await line.counts()).length == 1


async def test_a_closed_queue_and_a_paused_one_say_so(http: httpx.AsyncClient, jobs: str, line: Line) -> None:
    call = "/headway.v1.AdminService/"
    assert (await http.post(call + "Pause", json={"queue": line.name})).status_code == 200
    assert reason(await http.get(jobs)) == (503, "QUEUE_PAUSED")
    assert (await http.post(call + "Resume", json={"queue": line.name})).status_code == 200
    assert (await http.post("/headway.v1.QueueService/Close", json={"queue": line.name})).status_code == 200
    assert reason(await http.post(jobs, content=b"1")) == (409, "QUEUE_CLOSED")
    assert reason(await http.get(jobs)) == (409, "QUEUE_DRAINED")


async def is_down(http: httpx.AsyncClient) -> bool:
    """Whether the service has noticed."""
    return (await http.get("/queues/q/messages?count=1")).status_code == 503


async def test_a_store_that_is_down_is_503_and_never_empty(
    make_service: Callable[..., ServiceProcess], store_server: Any
) -> None:
    async with FaultProxy(store_server.port) as proxy:
        env = {"HEADWAY_REDIS_URL": proxy.url, "HEADWAY_HTTP_LISTEN": "127.0.0.1:0", "PRESSURE_PREFIX": "down"}
        service = await asyncio.to_thread(make_service, **env)
        async with httpx.AsyncClient(base_url=base_url(service), timeout=SLACK_S) as http:
            assert (await http.put("/queues/q")).status_code in (200, 201)
            proxy.cut()
            await eventually(lambda: is_down(http), within=SLACK_S)
            for answer in (
                await http.get("/queues/q/messages?count=1"),
                await http.get("/queues/q/messages", headers={"x-queue": "0.1"}),
                await http.post("/queues/q/messages", content=b"2"),
                await http.put("/queues/q/messages/one", content=b"2"),
                await http.request("DELETE", "/queues/q/messages", content=b"x"),
            ):
                assert answer.status_code == 503, answer.request.method
                assert answer.json()["reason"] in ("STORE_UNAVAILABLE", "OUTCOME_UNKNOWN")
                assert answer.headers["retry-after"] == "1"
            proxy.restore()

            async def serves() -> bool:
                return not await is_down(http)

            await eventually(serves, within=20)


@pytest.mark.long
async def test_a_body_that_does_not_come_ends_in_408(web_service: ServiceProcess, jobs: str) -> None:
    host, port = base_url(web_service).removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"POST {jobs} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 20\r\n\r\nx".encode())
    async with asyncio.timeout(40):
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
    writer.close()


async def test_a_page_of_another_site_can_take_no_job(http: httpx.AsyncClient, jobs: str, line: Line) -> None:
    await line.put(b"1")
    for headers in ({"sec-fetch-site": "cross-site", "sec-fetch-dest": "image"}, {"origin": "https://evil.example"}):
        assert (await http.get(jobs, headers=headers)).status_code == 403
        assert (await http.request("DELETE", jobs, content=b"x", headers=headers)).status_code == 403
        assert (await http.put(f"{jobs}/x", headers=headers)).status_code == 403
    assert (await line.counts()).length == 1
