"""The dashboard's door: what its one stream brings, whom it refuses, and that it ends with the page."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness import ServiceProcess, StoreServer, eventually, scraping
from headway.v1 import message_pb2, queue_service_pb2
from security.callers import PLAIN, Caller, write_callers
from web.conftest import base_url
from wire.calls import SLACK_S, Line, Message

EVENTS = "/dashboard/events"
FILES = {
    "/dashboard/": "text/html",
    "/dashboard/dashboard.js": "text/javascript",
    "/dashboard/dashboard.css": "text/css",
    "/dashboard/favicon.svg": "image/svg+xml",
}


class Events:
    """What a page is told, one event after the other."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def next(self) -> tuple[str, Any]:
        name = ""
        async for line in self._lines:
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                return name, json.loads(line[6:])
        raise AssertionError("the stream has ended")

    async def until(self, name: str, is_it: Callable[[Any], bool] = lambda _: True) -> Any:
        """The data of the first event like this."""
        while True:
            told, data = await self.next()
            if told == name and is_it(data):
                return data


@asynccontextmanager
async def looking(http: httpx.AsyncClient, caller: Caller | None = None, **view: str) -> AsyncIterator[Events]:
    headers = {} if caller is None else dict(caller.metadata)
    async with http.stream("GET", EVENTS, params=view, headers=headers) as response:
        yield Events(response)


async def test_it_brings_all_queues_and_what_changes(http: httpx.AsyncClient, line: Line) -> None:
    async with looking(http, prefix=line.name) as events:
        assert events.response.headers["content-type"] == "text/event-stream"
        assert events.response.headers["cache-control"] == "no-store"
        assert await events.next() == ("about", {"guarded": False, "actions": False})
        listed = await events.until("queues")
        assert (listed["names"], listed["next"]) == ([line.name], "")

        await line.put(b"one", b"two")

        told = await events.until("queue", lambda data: data["queue"]["counts"].get("length") == "2")
        assert told["queue"]["name"] == line.name
        assert "eta" in told or "asOf" in told


async def test_queues_come_and_go(http: httpx.AsyncClient, line: Line) -> None:
    other = Line(line.stub, f"{line.name}-other")
    async with looking(http, prefix=line.name) as events:
        await events.until("queues", lambda data: data["names"] == [line.name])
        await other.create()
        await events.until("queues", lambda data: data["names"] == [line.name, other.name])
        await line.stub.Delete(queue_service_pb2.DeleteRequest(queue=line.name), timeout=SLACK_S)
        await events.until("queues", lambda data: data["names"] == [other.name])


async def test_a_queue_that_is_made_anew_between_two_lists_is_followed_again(
    http: httpx.AsyncClient, line: Line
) -> None:
    def is_followed(length: str) -> Callable[[Any], bool]:
        return lambda data: "asOf" in data and data["queue"]["counts"].get("length", "0") == length

    async with looking(http, prefix=line.name) as events:
        await events.until("queue", is_followed("0"))
        await line.stub.Delete(queue_service_pb2.DeleteRequest(queue=line.name), timeout=SLACK_S)
        await line.create()
        await line.put(b"one")
        async with asyncio.timeout(30):
            await events.until("queue", is_followed("1"))


async def test_it_brings_one_queue_in_depth(http: httpx.AsyncClient, line: Line) -> None:
    await line.put(Message(id="first", payload=b"secret"), Message(id="second", payload=b"secret"))
    request = queue_service_pb2.GetRequest(queue=line.name, consumer="worker-1")
    await line.stub.Get(request, timeout=SLACK_S)

    async with looking(http, queue=line.name) as events:
        seen: dict[str, Any] = {}
        while not {"queue", "waiting", "leased", "dead"} <= seen.keys():
            name, data = await events.next()
            seen[name] = data

    assert seen["queue"]["queue"]["counts"]["leased"] == "1"
    (waiting,) = seen["waiting"]["messages"]
    assert (waiting["message"], waiting["position"]) == ({"id": "second"}, "1")
    (leased,) = seen["leased"]["messages"]
    assert (leased["id"], leased["consumer"], leased["attempt"]) == ("first", "worker-1", 1)
    assert seen["dead"] == {}


async def test_it_follows_one_message_to_its_end(http: httpx.AsyncClient, line: Line) -> None:
    await line.put(Message(id="job", payload=b"x"))
    async with looking(http, queue=line.name, message="job") as events:
        assert (await events.until("place"))["position"]["position"] == "1"
        taken = await line.take_one()
        await events.until("place", lambda data: "leased" in data)
        extend = queue_service_pb2.ExtendRequest(
            queue=line.name, leases=[taken.lease], progress=message_pb2.Progress(fraction=0.5)
        )
        await line.stub.Extend(extend, timeout=SLACK_S)
        await events.until("place", lambda data: data.get("leased", {}).get("progress", {}).get("fraction") == 0.5)
        await line.ack(taken.lease, result=b"done")
        finished = (await events.until("place", lambda data: "finished" in data))["finished"]
        assert (finished["outcome"], finished["result"]) == ("OUTCOME_DONE", "ZG9uZQ==")


async def test_a_queue_that_is_not_there_yet_appears(http: httpx.AsyncClient, line: Line) -> None:
    other = Line(line.stub, f"{line.name}-later")
    async with looking(http, queue=other.name) as events:
        assert (await events.until("refused", lambda data: data["part"] == "queue"))["code"] == 5
        await other.create()
        assert (await events.until("queue"))["queue"]["name"] == other.name


async def test_pages_that_look_at_the_same_share_it_and_the_last_ends_it(
    web_service: ServiceProcess, http: httpx.AsyncClient, line: Line
) -> None:
    async def watchers() -> float:
        return (await scraping.scrape(web_service)).value("watchers")

    before = await watchers()
    async with looking(http, queue=line.name) as one:
        await one.until("queue")
        async with looking(http, queue=line.name) as other:
            await other.until("queue")  # what was told before it came
            assert await watchers() == before + 1
        await line.put(b"x")
        await one.until("queue", lambda data: data["queue"]["counts"].get("length") == "1")

    async def are_gone() -> bool:
        return await watchers() == before

    await eventually(are_gone, within=SLACK_S)


@pytest.mark.parametrize("view", [{"queue": "bad\nname"}, {"queue": "q", "message": "m" * 300}], ids=["name", "id"])
async def test_what_no_call_takes_is_a_bad_request(http: httpx.AsyncClient, line: Line, view: dict[str, str]) -> None:
    known = {**view, "queue": line.name} if view.get("queue") == "q" else view
    response = await http.get(EVENTS, params=known)
    assert (response.status_code, response.json()["code"]) == (400, 3)


@pytest.mark.parametrize(("path", "kind"), FILES.items())
async def test_its_files_are_served_once(http: httpx.AsyncClient, path: str, kind: str) -> None:
    first = await http.get(path)
    assert (first.status_code, first.headers["content-type"].partition(";")[0]) == (200, kind)
    policy = first.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    again = await http.get(path, headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", ["../doors.py", "..%2Fdoors.py", "%2e%2e/doors.py", "nothing.js", "index.html/"])
async def test_nothing_else_is_served(http: httpx.AsyncClient, path: str) -> None:
    as_it_is = http.base_url.copy_with(raw_path=f"/dashboard/{path}".encode())
    response = await http.get(as_it_is)
    assert response.status_code == 404


async def test_the_root_leads_there(http: httpx.AsyncClient) -> None:
    for path in ("/", "/dashboard"):
        response = await http.get(path)
        assert (response.status_code, response.headers["location"]) == (307, "/dashboard/")


@pytest.mark.any_store
@pytest.mark.parametrize("queue", ["", "jobs"])
async def test_a_page_ends_well_when_the_service_goes_down_and_holds_nothing_up(
    make_service: Callable[..., ServiceProcess], store_server: StoreServer, queue: str
) -> None:
    env = {"HEADWAY_REDIS_URL": store_server.url, "HEADWAY_HTTP_LISTEN": "127.0.0.1:0", "HEADWAY_DRAIN_DELAY": "0s"}
    service = make_service(**env, PRESSURE_PREFIX=f"w{uuid.uuid4().hex[:8]}")
    async with httpx.AsyncClient(base_url=base_url(service), timeout=SLACK_S) as http:
        assert (await http.put("/queues/jobs")).is_success
        async with looking(http, queue=queue) as events:
            await events.until("queue")
            stopping = asyncio.create_task(asyncio.to_thread(service.stop))
            with pytest.raises(AssertionError, match="the stream has ended"):  # in good order, or httpx would say so
                await events.until("never")
        assert await stopping == 0
    log = service.log.read_text()
    assert "[error" not in log
    assert "uvicorn" not in log


@pytest.mark.any_store
async def test_pages_that_look_at_different_queues_do_not_share_the_streams_of_one_connection(
    make_service: Callable[..., ServiceProcess], store_server: StoreServer
) -> None:
    """Each may follow as many queues as there may be streams of one."""
    env = {"HEADWAY_REDIS_URL": store_server.url, "HEADWAY_HTTP_LISTEN": "127.0.0.1:0"}
    prefix = f"w{uuid.uuid4().hex[:8]}"
    service = make_service(**env, PRESSURE_PREFIX=prefix, HEADWAY_MAX_STREAMS_PER_CONNECTION="2")
    async with httpx.AsyncClient(base_url=base_url(service), timeout=SLACK_S) as http, AsyncExitStack() as stack:
        for page in "abc":
            names = [f"{page}1", f"{page}2"]
            for name in names:
                assert (await http.put(f"/queues/{name}")).is_success
            events = await stack.enter_async_context(looking(http, prefix=page))
            followed = set[str]()
            while followed != set(names):  # what a list tells has no instant
                told = await asyncio.wait_for(events.until("queue", lambda data: "asOf" in data), SLACK_S)
                followed.add(told["queue"]["name"])


@pytest.mark.any_store
@pytest.mark.parametrize("setting", ["HEADWAY_DASHBOARD", "HEADWAY_HTTP_CALLS"])
async def test_it_can_be_turned_off(
    make_service: Callable[..., ServiceProcess], store_server: StoreServer, setting: str
) -> None:
    env = {"HEADWAY_REDIS_URL": store_server.url, "HEADWAY_HTTP_LISTEN": "127.0.0.1:0", setting: "false"}
    service = make_service(**env, PRESSURE_PREFIX=f"w{uuid.uuid4().hex[:8]}")
    async with httpx.AsyncClient(base_url=base_url(service), timeout=SLACK_S) as http:
        for path in ("/", "/dashboard/", EVENTS):
            assert (await http.get(path)).status_code == 404
        assert (await http.get("/healthz")).status_code == 200


@pytest.mark.any_store
async def test_where_callers_are_known_it_shows_what_each_may_see(
    make_service: Callable[..., ServiceProcess], store_server: StoreServer, short_dir: Path
) -> None:
    some = Caller(roles=("watcher",), queues=("mail-*",))
    callers = write_callers(short_dir / "callers.toml", [*PLAIN.values(), some])
    env = {"HEADWAY_REDIS_URL": store_server.url, "HEADWAY_HTTP_LISTEN": "127.0.0.1:0"}
    service = make_service(**env, PRESSURE_PREFIX=f"w{uuid.uuid4().hex[:8]}", HEADWAY_AUTH_FILE=str(callers))
    async with httpx.AsyncClient(base_url=base_url(service), timeout=SLACK_S) as http:
        create = "/headway.v1.QueueService/Create"
        made = await http.post(create, json={"queue": "mail-1"}, headers=dict(PLAIN["admin"].metadata))
        assert made.is_success

        async def status(caller: Caller | None, **view: str) -> int:
            async with looking(http, caller, **view) as events:
                return events.response.status_code

        assert (await http.get("/dashboard/")).status_code == 200  # the page itself tells nothing
        for view in ({}, {"queue": "mail-1"}, {"queue": "mail-1", "message": "m"}):
            assert await status(None, **view) == 401
            assert await status(Caller(roles=("admin",)), **view) == 401
            assert await status(PLAIN["consumer"], **view) == 403
            assert await status(PLAIN["watcher"], **view) == 200
        assert await status(some) == 403
        assert await status(some, prefix="mail-") == 200
        assert await status(some, queue="other") == 403

        async with looking(http, some, queue="mail-1") as events:
            assert await events.next() == ("about", {"guarded": True, "actions": True})
            refused = set[str]()
            while refused != {"waiting", "leased", "dead"}:
                name, data = await events.next()
                if name == "refused":
                    assert data["code"] == 7
                    refused.add(data["part"])
        async with looking(http, PLAIN["admin"], queue="mail-1") as events:
            assert await events.until("dead") == {}
