"""The official connect-web client in a real Chromium, by both of its transports, against a live service."""

from __future__ import annotations

import asyncio
import base64
import http.server
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path

import grpc
import pytest
from playwright.async_api import Browser, expect

from browser.program import PAGES, Program, Refused, built_pages, bundled, opened
from docs.blocks import ROOT, blocks_of
from harness import ServiceProcess, StoreServer, eventually
from headway.v1.message_pb2 import Progress
from headway.v1.queue_service_pb2 import ExtendRequest
from headway.v1.queue_service_pb2_grpc import QueueServiceStub
from security.callers import TEAM, write_callers
from web.conftest import base_url
from wire.calls import SLACK_S, Line, Message

# The programs are built with the TypeScript client, and chosen with it.
pytestmark = [pytest.mark.parametrize("language", ["typescript"]), pytest.mark.timeout(1200)]
GONE_S = 5.0  # in which a page's leaving takes effect; a lease would last 30 s


@pytest.fixture
def built(language: str) -> None:
    """What pages load."""
    assert language == "typescript"
    built_pages()


@pytest.fixture(params=["connect", "grpc-web"])
async def program(
    request: pytest.FixtureRequest, built: None, browser: Browser, pages: ServiceProcess
) -> AsyncIterator[Program]:
    """A page of the service's own, whose client uses one of the transports as it is by itself."""
    async with opened(browser, f"{base_url(pages)}/healthz") as page:
        made = Program(page)
        await made.connect(request.param, base_url(pages))
        yield made


async def test_a_job_goes_from_put_to_ack(program: Program, line: Line) -> None:
    payload = base64.b64encode(b"\x00\xff").decode()
    put = await program.call("Put", queue=line.name, messages=[{"id": "ä", "payload": payload}])
    assert put == {"results": [{"id": "ä", "ticket": "1", "position": "1"}]}
    watch = await program.open("WatchPosition", queue=line.name, messages={"ids": ["ä"]})
    assert (await watch.until("position"))["position"] == "1"
    got = await program.call("Get", queue=line.name)
    (delivery,) = got["deliveries"]
    assert delivery["message"]["payload"] == payload
    assert (await watch.until("leased"))["attempt"] == 1
    acked = await program.call("Ack", queue=line.name, leases=[delivery["lease"]], result=payload)
    assert acked["results"][0]["settled"] == "SETTLED_ACKED"
    assert (await watch.until("finished"))["result"] == payload
    assert await watch.next() is None


async def test_an_error_has_its_details(program: Program, line: Line) -> None:
    await line.update(bound=1)
    await line.put(b"first")
    with pytest.raises(Refused) as full:
        await program.call("Put", queue=line.name, messages=[{}])
    assert full.value.said["code"] == "ResourceExhausted"
    assert full.value.said["reason"] == "QUEUE_FULL"
    assert full.value.said["metadata"]["bound"] == "1"
    assert full.value.said["retry"] == {"retryDelay": "1s"}
    with pytest.raises(Refused) as invalid:
        await program.call("Get", queue=line.name, maxMessages=100_000)
    assert (invalid.value.said["code"], invalid.value.said["fields"]) == ("InvalidArgument", ["max_messages"])
    nowhere = await program.open("WatchPosition", queue="größe?", messages={"ids": ["x"]})
    with pytest.raises(Refused) as unknown:
        await nowhere.next()
    assert (unknown.value.said["code"], unknown.value.said["reason"]) == ("NotFound", "QUEUE_NOT_FOUND")
    assert "'größe?'" in unknown.value.said["text"]


async def test_a_deadline_ends_a_wait_before_it_and_a_stream_with_it(program: Program, line: Line) -> None:
    assert await program.call("Get", 5_000, queue=line.name, wait="30s") == {}  # a tenth of it is for the way
    await line.put(Message(id="one"))
    watch = await program.open("WatchPosition", 500, queue=line.name, messages={"ids": ["one"]})
    with pytest.raises(Refused) as ended:
        await watch.until("finished")
    assert ended.value.said["code"] == "DeadlineExceeded"


async def test_a_stand_that_is_aborted_gives_back_its_lease_for_free(program: Program, line: Line) -> None:
    stand = await program.open("WatchPosition", queue=line.name, stand={"consumer": "page"})
    assert (await stand.until("position"))["position"] == "1"
    await line.put(b"job")
    (delivery,) = (await stand.until("granted"))["deliveries"]
    assert delivery["attempt"] == 1
    waiting = asyncio.ensure_future(line.get(wait_ms=30_000))
    await stand.abort()
    async with asyncio.timeout(GONE_S):
        (again,) = (await waiting).deliveries
    assert (again.message.payload, again.attempt) == (b"job", 1)


async def test_a_page_that_is_closed_withdraws_what_it_attended(program: Program, line: Line) -> None:
    await line.put(Message(id="one"))
    watch = await program.open("WatchPosition", queue=line.name, messages={"ids": ["one"], "attended": True})
    assert (await watch.until("position"))["position"] == "1"
    await program.page.close()

    async def is_withdrawn() -> bool:
        return (await line.counts()).withdrawn == 1

    await eventually(is_withdrawn, within=GONE_S)


async def test_a_page_that_goes_elsewhere_leaves_the_line(program: Program, line: Line) -> None:
    stand = await program.open("WatchPosition", queue=line.name, stand={})
    await stand.until("position")
    assert (await line.counts()).consumers_waiting == 1
    await program.page.goto("about:blank")

    async def has_left() -> bool:
        return not (await line.counts()).consumers_waiting

    await eventually(has_left, within=GONE_S)


@pytest.mark.parametrize(("program", "binary"), [("connect", True), ("grpc-web", False)], indirect=["program"])
async def test_large_messages_arrive_whole(
    program: Program, line: Line, pages: ServiceProcess, *, binary: bool
) -> None:
    """In the format that the transport does not have by itself."""
    await program.connect("connect" if binary else "grpc-web", base_url(pages), binary=binary)
    assert await program.page.evaluate(_LARGE, line.name) == 3
    got = (await line.get(3)).deliveries
    assert [each.message.payload for each in got] == [letter * 900_000 for letter in (b"a", b"b", b"c")]


# Large texts stay in the page: on their way out of it and back they would take seconds.
_LARGE = """async queue => {
    const messages = ["a", "b", "c"].map(letter => ({payload: btoa(letter.repeat(900_000))}));
    await headway.call("Put", {queue, messages});
    const {ok} = await headway.call("Get", {queue, maxMessages: 3});
    const leases = ok.deliveries.map(({lease}) => lease);
    await headway.call("Delay", {queue, leases, delay: "0s", keepAttempt: true});
    return ok.deliveries.filter(({message}, index) => message.payload === messages[index].payload).length;
}"""


async def test_one_stream_watches_many_ids_and_leaves_room_for_calls(program: Program, line: Line) -> None:
    ids = [f"m{number}" for number in range(500)]
    await line.put(*(Message(id=each) for each in ids))
    watch = await program.open("WatchPosition", queue=line.name, messages={"ids": ids})
    places: dict[str, int] = {}
    while len(places) < len(ids):
        position = await watch.until("position")
        places[position["id"]] = int(position["position"])
    assert places == {each: number for number, each in enumerate(ids, start=1)}
    assert (await program.call("Describe", queue=line.name))["queue"]["counts"]["length"] == "500"


@pytest.mark.parametrize("program", ["connect"], indirect=True)
async def test_a_seventh_request_waits_until_one_of_six_streams_is_left(program: Program, line: Line) -> None:
    """So many connections to a host a browser opens by HTTP/1.1, which docs/http.md tells."""
    streams = [await program.open("WatchQueue", queue=line.name) for _ in range(6)]
    for stream in streams:
        await stream.next()
    call = asyncio.ensure_future(program.call("Describe", queue=line.name))
    done, _ = await asyncio.wait({call}, timeout=0.3)
    assert not done
    await streams[0].abort()
    async with asyncio.timeout(SLACK_S):
        assert (await call)["queue"]["name"] == line.name


# -- pages of other sites, and callers --------------------------------------------------------------------------------


@pytest.fixture
def site(built: None) -> Iterator[int]:
    """The port of another site of this machine, which has a page, too."""
    handler = partial(_Quiet, directory=str(PAGES))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as it is named there
        pass


@pytest.fixture
def guarded(
    site: int, short_dir: Path, store_server: StoreServer, make_service: Callable[..., ServiceProcess]
) -> ServiceProcess:
    """A service that knows its callers, and lets the pages of the other site call by one of its names."""
    return make_service(
        HEADWAY_REDIS_URL=store_server.url,
        HEADWAY_HTTP_LISTEN="127.0.0.1:0",
        HEADWAY_HTTP_ORIGINS=f"http://127.0.0.1:{site}",
        HEADWAY_AUTH_FILE=str(write_callers(short_dir / "callers.toml", TEAM.values())),
    )


@pytest.mark.parametrize("protocol", ["connect", "grpc-web"])
async def test_pages_of_named_sites_may_call_with_a_token_and_others_may_not(
    protocol: str, site: int, guarded: ServiceProcess, browser: Browser
) -> None:
    url, name = base_url(guarded), f"page-of-{protocol}"
    async with opened(browser, f"http://127.0.0.1:{site}/") as page:
        program = Program(page)
        await program.connect(protocol, url, TEAM["admin"].token)
        await program.call("Create", queue=name)
        watch = await program.open("WatchQueue", queue=name)
        assert (await watch.until("queue"))["name"] == name
        await program.connect(protocol, url, TEAM["watcher"].token)
        with pytest.raises(Refused) as denied:  # its details reach the page although it is another site's
            await program.call("Create", 10_000, queue=f"{name}-2")
        assert (denied.value.said["code"], denied.value.said["reason"]) == ("PermissionDenied", "PERMISSION_DENIED")
        for token in (None, "made-up"):
            await program.connect(protocol, url, token)
            with pytest.raises(Refused) as unknown:
                await program.call("Describe", queue=name)
            assert (unknown.value.said["code"], unknown.value.said["reason"]) == ("Unauthenticated", "UNAUTHENTICATED")
    async with opened(browser, f"http://localhost:{site}/") as page:
        program = Program(page)
        await program.connect(protocol, url, TEAM["admin"].token)
        with pytest.raises(Refused) as refused:
            await program.call("Create", queue=f"{name}-3")
        assert (refused.value.said["code"], refused.value.said["text"]) == ("Unknown", "Failed to fetch")
        stream = await program.open("WatchQueue", queue=name)
        with pytest.raises(Refused, match="Failed to fetch"):
            await stream.next()


# -- programs that documents show -------------------------------------------------------------------------------------


async def test_the_readmes_page_shows_place_progress_and_result(
    built: None, browser: Browser, pages: ServiceProcess
) -> None:
    """clients/typescript/examples/browser.ts, by the layer."""
    async with grpc.aio.insecure_channel(pages.address) as channel:
        line = Line(QueueServiceStub(channel), "browser-pictures")
        await line.create()
        await line.put(b"ahead")
        async with opened(browser, f"{base_url(pages)}/healthz", PAGES / "browser.js") as page:
            shown = page.locator("output")
            await expect(shown).to_have_text("number 2 of 2")
            await line.take_one()
            await expect(shown).to_have_text("number 1 of 1")
            delivery = await line.take_one()
            await expect(shown).to_have_text("0 %")
            progress = Progress(fraction=0.5)
            await line.stub.Extend(ExtendRequest(queue=line.name, leases=[delivery.lease], progress=progress))
            await expect(shown).to_have_text("50 %")
            await line.ack(delivery.lease, result=b"done")
            await expect(shown).to_have_text("done")


async def test_the_documents_waiting_room_tells_the_place_then_the_table_and_gives_it_back(
    built: None, browser: Browser, pages: ServiceProcess, tmp_path: Path
) -> None:
    """The program of docs/http.md, word for word."""
    (shown,) = [each for each in blocks_of((ROOT / "docs/http.md").read_text()) if each.words == ("typescript", "page")]
    program = bundled(shown.text, tmp_path / "waiting.js")
    async with grpc.aio.insecure_channel(pages.address) as channel:
        line = Line(QueueServiceStub(channel), "tables")
        await line.create()
        async with opened(browser, f"{base_url(pages)}/healthz", program) as page:
            told = page.locator("output")
            await expect(told).to_have_text("You are number 1 of 1.")
            await line.put(b"by the window")
            await expect(told).to_have_text("Your table: by the window.")
            assert (await line.counts()).leased == 1
            await page.get_by_role("button", name="Leave").click()
            await expect(told).to_have_text("You have left.")
        again = await line.take_one(wait_ms=5_000)
        assert (again.message.payload, again.attempt) == (b"by the window", 1)
