"""X-Queue: a place in line that belongs to a connection, kept by asking again in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
from google.protobuf.duration_pb2 import Duration

from harness import ServiceProcess, eventually
from headway.v1 import queue_pb2
from headwayd.domain.xqueue import XQueue, parse_xqueue
from security.callers import OTHERS, PLAIN, TEAM, write_callers
from web.conftest import base_url
from wire.calls import SLACK_S, Line

ASKS = {"x-queue": "0.1"}


def polls(base_s: int, *, tolerance_ms: int = 100, strikes: int = 3) -> queue_pb2.Poll:
    """A poll part of a policy: so many seconds from poll to poll at every place."""
    base = Duration(seconds=base_s)
    tolerance = Duration(nanos=tolerance_ms * 1_000_000)
    return queue_pb2.Poll(base=base, per_position=Duration(), max=base, tolerance=tolerance, strikes=strikes)


def place_in(answer: httpx.Response) -> XQueue:
    """What a 503 says of the place."""
    assert answer.status_code == 503, answer.text
    said = parse_xqueue(answer.headers["x-queue"])
    assert answer.headers["retry-after"] == str(said.poll_min_s)
    return said


def position_in(answer: httpx.Response) -> int | None:
    """The place."""
    return place_in(answer).position


class Poller:
    """One connection, and what is asked on it."""

    def __init__(self, http: httpx.AsyncClient, queue: str, headers: dict[str, str]) -> None:
        self._http, self._path, self._headers = http, f"/queues/{queue}/messages", headers

    async def ask(self, queue: str = "", *, headers: dict[str, str] | None = None, **query: int) -> httpx.Response:
        """Asks for work, or for a slot."""
        path = f"/queues/{queue}/messages" if queue else self._path
        return await self._http.get(path, params=query, headers=self._headers | (headers or {}))


@asynccontextmanager
async def poller(service: ServiceProcess, queue: str, headers: dict[str, str] | None = None) -> AsyncIterator[Poller]:
    """Left, the connection is closed."""
    one = httpx.Limits(max_connections=1, keepalive_expiry=None)
    async with httpx.AsyncClient(base_url=base_url(service), limits=one, timeout=SLACK_S) as http:
        yield Poller(http, queue, ASKS if headers is None else headers)


async def standing(line: Line) -> int:
    """How many stand in line."""
    return (await line.counts()).consumers_waiting


async def stand(line: Line, count: int, *, within: float = SLACK_S) -> None:
    """Waits until so many stand there."""

    async def do() -> bool:
        return await standing(line) == count

    await eventually(do, within=within)


async def test_the_header_tells_the_place_the_line_and_the_slots(web_service: ServiceProcess, line: Line) -> None:
    await line.update(limit=4, poll=polls(45))
    async with poller(web_service, line.name) as first, poller(web_service, line.name) as second:
        answer = await first.ask()
        assert answer.headers["x-queue"] == "position=1,length=1,limit=4,pollMin=45,pollMax=90"
        assert answer.headers["retry-after"] == "45"
        assert answer.json()["code"] == "unavailable"
        assert (await second.ask()).headers["x-queue"] == "position=2,length=2,limit=4,pollMin=45,pollMax=90"


async def test_a_job_that_is_there_is_given_at_once_and_no_place(web_service: ServiceProcess, line: Line) -> None:
    await line.put(b"job", b"two")
    async with poller(web_service, line.name) as one:
        answer = await one.ask()
        assert (answer.status_code, answer.content) == (200, b"job")
        assert "x-queue" not in answer.headers
        listed = await one.ask(count=5)
        assert [each["value"] for each in listed.json()["items"]] == ["two"]
        assert await standing(line) == 0


async def test_who_waits_for_a_slot_is_told_so_and_gets_it(web_service: ServiceProcess, line: Line) -> None:
    await line.update(limit=1, poll=polls(1))
    await line.put(b"1", b"2")
    held = await line.take_one()
    async with poller(web_service, line.name) as one:
        assert position_in(await one.ask()) == 1
        await line.ack(held.lease)
        answer = await one.ask()  # a poll that can be served is never too soon
        assert (answer.status_code, answer.content) == (200, b"2")
        assert (await one.ask()).headers["x-queue"].startswith("position=1,length=1,limit=1,")


async def test_pollers_are_served_in_the_order_in_which_they_came(web_service: ServiceProcess, line: Line) -> None:
    await line.update(poll=polls(60))
    async with poller(web_service, line.name) as first, poller(web_service, line.name) as second:
        assert [position_in(await each.ask()) for each in (first, second)] == [1, 2]
        await line.put(b"1")
        early = await second.ask()  # it is not its turn, and it is too soon
        assert (early.status_code, early.json()["reason"]) == (429, "POLL_TOO_SOON")
        assert (await first.ask()).content == b"1"
        await line.put(b"2")
        assert (await second.ask()).content == b"2"


async def test_who_asks_too_soon_keeps_the_place_and_loses_it_when_that_goes_on(
    web_service: ServiceProcess, line: Line
) -> None:
    await line.update(poll=polls(60, strikes=3))
    async with poller(web_service, line.name) as first, poller(web_service, line.name) as second:
        assert [position_in(await each.ask()) for each in (first, second)] == [1, 2]
        for _ in range(2):
            early = await first.ask()
            assert (early.status_code, early.json()["reason"]) == (429, "POLL_TOO_SOON")
            assert 55 <= int(early.headers["retry-after"]) <= 60
            assert "x-queue" not in early.headers
        assert position_in(await first.ask()) == 2  # the third strike: behind the other, who has moved up
        await line.put(b"1")
        assert (await second.ask()).content == b"1"


async def test_the_connections_end_gives_the_place_up_at_once(web_service: ServiceProcess, line: Line) -> None:
    await line.update(poll=polls(60))
    async with poller(web_service, line.name) as second:
        async with poller(web_service, line.name) as first:
            assert position_in(await first.ask()) == 1
            assert position_in(await second.ask()) == 2
        await stand(line, 1)
        await line.put(b"job")
        answer = await second.ask()
        assert (answer.status_code, answer.content) == (200, b"job")
        assert answer.headers["headway-attempt"] == "1"


async def test_a_job_kept_for_a_connection_that_ends_goes_to_the_next(web_service: ServiceProcess, line: Line) -> None:
    await line.update(poll=polls(60, strikes=100))
    async with poller(web_service, line.name) as second:
        async with poller(web_service, line.name) as first:
            assert position_in(await first.ask()) == 1
            assert position_in(await second.ask()) == 2
            await line.put(b"job")  # is the first one's turn
        answers: list[httpx.Response] = []

        async def is_given() -> bool:  # too soon, until the service has seen the first one go
            answers.append(await second.ask())
            return answers[-1].status_code == httpx.codes.OK

        await eventually(is_given, within=20)
        assert answers[-1].content == b"job"
        assert answers[-1].headers["headway-attempt"] == "1"


@pytest.mark.parametrize("is_later", [False, True], ids=["the first poll", "a later one"])
@pytest.mark.parametrize("query", ["", "?wait=30"], ids=["at once", "waiting"])
async def test_whoever_hangs_up_while_it_asks_leaves_nobody_behind(
    web_service: ServiceProcess, line: Line, *, query: str, is_later: bool
) -> None:
    await line.update(poll=polls(1))
    host, port = base_url(web_service).removeprefix("http://").split(":")
    request = f"GET /queues/{line.name}/messages{{}} HTTP/1.1\r\nhost: localhost\r\nx-queue: 0.1\r\n\r\n"
    for pause_s in (0.0, 0.001, 0.002, 0.004, 0.01):
        reader, writer = await asyncio.open_connection(host, int(port))
        if is_later:
            writer.write(request.format("").encode())
            assert b"x-queue: position=1,length=1," in await reader.readuntil(b'kept"}\n')
            await asyncio.sleep(1.05)  # until the next poll is in time
        writer.write(request.format(query).encode())
        await writer.drain()
        await asyncio.sleep(pause_s)  # hangs up here and there in the call
        writer.transport.abort()
        await stand(line, 0, within=8)  # by itself a place lapses after 11 s
    await line.put(b"job")
    assert (await line.take_one()).attempt == 1


@pytest.mark.parametrize("version", [None, "0", "0.2", "1.0", "0.10", "x", ""])
async def test_who_does_not_say_this_version_gets_a_plain_503_and_no_place(
    web_service: ServiceProcess, line: Line, version: str | None
) -> None:
    async with poller(web_service, line.name, {} if version is None else {"x-queue": version}) as one:
        answer = await one.ask()
        assert answer.status_code == 503
        assert "x-queue" not in answer.headers
        assert await standing(line) == 0
        await line.put(b"job")
        assert (await one.ask()).content == b"job"


@pytest.mark.parametrize("said", ["0.1", "1.0 ,0.1", "0.1,0.1,", "0.1\t, x"])
async def test_the_version_is_read_liberally(web_service: ServiceProcess, line: Line, said: str) -> None:
    async with poller(web_service, line.name, {"X-QUEUE": said}) as one:
        assert position_in(await one.ask()) == 1


async def test_a_connection_has_a_place_of_its_own_in_each_queue(
    web_service: ServiceProcess, line: Line, http: httpx.AsyncClient
) -> None:
    await line.update(poll=polls(60))
    other = f"{line.name}-other"
    assert (await http.put(f"/queues/{other}")).status_code == 201
    async with poller(web_service, line.name) as first:
        assert position_in(await first.ask()) == 1
        async with poller(web_service, other) as second:
            assert position_in(await second.ask()) == 1
            assert position_in(await first.ask(other)) == 2
            assert position_in(await second.ask(line.name)) == 2
        assert (await first.ask()).status_code == 429
        await http.post(f"/queues/{other}/messages", content=b"there")
        await line.put(b"here")
        assert [(await first.ask(queue)).content for queue in ("", other)] == [b"here", b"there"]


async def test_a_connection_has_so_many_places_and_is_told_why_it_gets_no_more(
    web_service: ServiceProcess, line: Line
) -> None:
    await line.update(poll=polls(300))
    async with poller(web_service, line.name) as one:
        for number in range(100):
            assert position_in(await one.ask(headers={"authorization": f"Bearer {number}"})) == number + 1
        refused = await one.ask(headers={"authorization": "Bearer one more"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json() == {
            "code": "resource_exhausted",
            "reason": "OVERLOADED",
            "message": "a connection has at most 100 places",
            "metadata": {"limit": "places_per_connection"},
            "retry_after": 1.0,
        }
        kept = await one.ask(headers={"authorization": "Bearer 0"})
        assert (kept.status_code, kept.json()["reason"]) == (429, "POLL_TOO_SOON")
        assert await standing(line) == 100


async def test_a_queue_that_goes_takes_the_place_with_it(
    web_service: ServiceProcess, line: Line, http: httpx.AsyncClient
) -> None:
    async with poller(web_service, line.name) as one:
        assert position_in(await one.ask()) == 1
        assert (await http.post("/headway.v1.QueueService/Delete", json={"queue": line.name})).status_code == 200
        assert (await one.ask()).json()["reason"] == "QUEUE_NOT_FOUND"
        await line.create()
        assert position_in(await one.ask()) == 1


async def test_whoever_asks_within_the_window_keeps_the_place(web_service: ServiceProcess, line: Line) -> None:
    """As known clients do: as early as they may, in the middle of the window, and shortly before its end, which is
    later than other connections may be silent."""
    await line.update(poll=polls(2))

    async def keep(one: Poller, first: httpx.Response, share: float, times: int) -> None:
        said = place_in(first)
        for _ in range(times):
            assert said.poll_min_s
            assert said.poll_max_s
            # A client of X-Queue does nothing else.
            await asyncio.sleep(said.poll_min_s + share * (said.poll_max_s - said.poll_min_s))
            said, before = place_in(await one.ask()), said.position
            assert said.position == before

    async with AsyncExitStack() as stack:
        ones = [await stack.enter_async_context(poller(web_service, line.name)) for _ in range(3)]
        firsts = [await one.ask() for one in ones]
        assert list(map(position_in, firsts)) == [1, 2, 3]
        async with asyncio.TaskGroup() as tasks:
            for one, first, (share, times) in zip(ones, firsts, ((0.85, 1), (0.5, 1), (0.0, 5)), strict=True):
                tasks.create_task(keep(one, first, share, times))


@pytest.mark.any_store
async def test_a_place_is_of_one_caller_even_on_one_connection(
    make_service: Callable[..., ServiceProcess], short_dir: Path
) -> None:
    callers = write_callers(short_dir / "callers.toml", [*TEAM.values(), *PLAIN.values(), *OTHERS.values()])
    service = make_service(HEADWAY_HTTP_LISTEN="127.0.0.1:0", HEADWAY_AUTH_FILE=str(callers))
    async with httpx.AsyncClient(base_url=base_url(service), timeout=SLACK_S) as http:
        for each in (TEAM, PLAIN):
            made = await http.put("/queues/q", headers=dict(each["admin"].metadata))
            assert made.status_code == 201
    async with poller(service, "q") as one:

        async def ask(metadata: Sequence[tuple[str, str]]) -> httpx.Response:
            return await one.ask(headers=dict(metadata))

        assert position_in(await ask(TEAM["consumer"].metadata)) == 1
        assert position_in(await ask(TEAM["admin"].metadata)) == 2
        assert position_in(await ask(PLAIN["consumer"].metadata)) == 1
        assert (await ask(())).status_code == 401
        assert (await ask(OTHERS["consumer"].metadata)).status_code == 404
        refused = await ask(TEAM["producer"].metadata)
        assert (refused.status_code, refused.json()["reason"]) == (403, "PERMISSION_DENIED")


async def test_a_service_that_goes_down_gives_up_the_places_of_its_connections(
    make_service: Callable[..., ServiceProcess], web_service: ServiceProcess, line: Line
) -> None:
    """Both serve the same queue: what was the first one's turn is the next one's at once."""
    await line.update(poll=polls(60))
    env = {name: web_service.env[name] for name in ("HEADWAY_REDIS_URL", "PRESSURE_PREFIX", "HEADWAY_HTTP_LISTEN")}
    leaving = await asyncio.to_thread(make_service, **env)
    async with poller(leaving, line.name) as first, poller(web_service, line.name) as second:
        assert [position_in(await each.ask()) for each in (first, second)] == [1, 2]
        assert await asyncio.to_thread(leaving.stop) == 0
        await line.put(b"job")
        assert (await second.ask()).content == b"job"
