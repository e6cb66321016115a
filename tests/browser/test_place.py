"""<headway-place> and its example page in a real browser: what a person sees of a job, from the line to the result."""

from __future__ import annotations

import asyncio
import http.server
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path

import grpc
import pytest
from playwright.async_api import Browser, Locator, Page, expect

from browser.dashboards import assert_accessible
from harness import ServiceProcess, eventually
from headway.v1 import queue_pb2
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Message, Progress
from headway.v1.queue_service_pb2_grpc import QueueServiceStub
from security.callers import PLAIN, Caller, line_of, write_callers
from web.conftest import base_url
from wire.calls import SLACK_S, Line, span

LONG_MS = SLACK_S * 1_000
HOSTILE = "<img src=x onerror=alert(1)>\"'&</script>"

expect.set_options(timeout=LONG_MS)


def part(place: Locator, name: str) -> Locator:
    """A part of the element; Playwright looks into open shadow trees."""
    return place.locator(f'[part="{name}"]')


async def put(line: Line, *ids: str) -> None:
    await line.put(*(Message(id=each) for each in ids))


async def finish(line: Line, result: bytes = b"") -> None:
    """Takes and acks the message at the head."""
    await line.ack((await line.take_one()).lease, result=result)


async def embed(page: Page, queue: str, *ids: str, **attributes: str) -> Locator:
    """A page of the service with an element for each id, made as a script would."""
    await page.goto("/example")
    await page.evaluate(
        """([queue, ids, attributes]) => ids.forEach(id => {
            const place = document.createElement("headway-place");
            for (const [name, value] of Object.entries({queue, message: id, ...attributes}))
                place.setAttribute(name, value);
            document.querySelector("main").append(place);
        })""",
        [queue, list(ids), attributes],
    )
    return page.locator("main > headway-place")


async def submit(page: Page, queue: str, what: str = "say hello") -> Locator:
    """Fills in the form of the example page; the element of the new job."""
    await page.get_by_label("Queue").fill(queue)
    await page.get_by_label("What to do").fill(what)
    before = await page.locator("headway-place").count()
    await page.get_by_role("button", name="Submit").click()
    await expect(page.locator("headway-place")).to_have_count(before + 1)
    return page.locator("headway-place").first


async def test_a_job_is_watched_from_the_line_to_its_result(
    page: Page, line: Line, screenshot: Callable[[str], Path]
) -> None:
    await put(line, "first", "second", "third", "fourth")
    await page.goto("/example")
    place = await submit(page, line.name, "resize 40 pictures")
    await expect(part(place, "status")).to_have_text(re.compile("you are number 5 of 5"))
    await expect(part(place, "bar")).to_be_hidden()
    for left in (4, 3, 2, 1):
        await finish(line)
        await expect(part(place, "status")).to_have_text(re.compile(f"you are number {left} of {left}"))

    delivery = await line.take_one(lease_ms=60_000)
    await expect(part(place, "status")).to_have_text("being worked on")
    await expect(part(place, "bar")).not_to_have_attribute("aria-valuenow", re.compile(""))
    for fraction in (0.25, 0.65):
        progress = Progress(fraction=fraction, note=f"picture {int(fraction * 40)} of 40")
        request = pb.ExtendRequest(queue=line.name, leases=[delivery.lease], lease=span(60_000), progress=progress)
        await line.stub.Extend(request, timeout=SLACK_S)
        await expect(place.get_by_role("progressbar")).to_have_attribute("aria-valuenow", str(round(fraction * 100)))
        await expect(part(place, "note")).to_have_text(progress.note)
    await expect(part(place, "fill")).to_have_attribute("style", "width: 65%;")

    await line.ack(delivery.lease, result=b"40 pictures, 3.1 MB")
    await expect(part(place, "status")).to_have_text("done")
    await expect(part(place, "result")).to_have_text("40 pictures, 3.1 MB")
    await expect(part(place, "bar")).to_be_hidden()
    await expect(place).to_have_attribute("state", "done")

    await page.reload()
    await expect(part(page.locator("headway-place"), "result")).to_have_text("40 pictures, 3.1 MB")


async def test_three_jobs_in_three_states_are_shown_in_light_and_dark_to_everybody(
    page: Page, line: Line, screenshot: Callable[[str], Path]
) -> None:
    """The pictures of docs/pages.md, after some work from which a wait can be expected."""
    await line.put(*(b"" for _ in range(40)))
    await page.set_viewport_size({"width": 640, "height": 760})
    await page.goto("/example")
    jobs = page.get_by_role("listitem")
    await submit(page, line.name, "resize 40 pictures")
    for _ in range(40):
        await finish(line)
    await finish(line, b"40 pictures, 3.1 MB")
    await expect(part(jobs.first, "status")).to_have_text("done")
    await submit(page, line.name, "render the title")
    delivery = await line.take_one(lease_ms=60_000)
    request = pb.ExtendRequest(queue=line.name, leases=[delivery.lease], lease=span(60_000))
    request.progress.MergeFrom(Progress(fraction=0.65, note="frame 312 of 480"))
    await line.stub.Extend(request, timeout=SLACK_S)
    await expect(part(jobs.first, "note")).to_have_text("frame 312 of 480")
    await line.put(*(b"" for _ in range(411)))
    await submit(page, line.name, "send the letters")
    await expect(part(jobs.first, "status")).to_have_text(re.compile(r"^you are number 412 of 412, about"))
    await expect(page.locator("headway-place[state=done], headway-place[state=waiting]")).to_have_count(2)
    await page.get_by_label("Queue").fill("example")
    for colors in ("light", "dark"):
        await page.emulate_media(color_scheme=colors, reduced_motion="reduce")
        for job, state in zip(await jobs.all(), ("waiting", "working", "done"), strict=True):
            if colors == "light":
                await job.screenshot(path=screenshot(f"place-{state}"))
        await page.screenshot(path=screenshot(f"example-{colors}"))
        await assert_accessible(page)


async def test_an_expected_wait_is_told_once_it_is_known(page: Page, line: Line) -> None:
    """Workers finish one message after the other until there is a basis for an estimate; steps far back are told, too,
    once a second."""
    await line.update("poll.per_position", poll=queue_pb2.Poll(per_position=span(0)))
    await line.put(*(b"" for _ in range(900)), Message(id="mine"))
    place = await embed(page, line.name, "mine")
    await expect(part(place, "status")).to_have_text("you are number 901 of 901")

    async def is_estimated() -> bool:
        await finish(line)
        return "about" in (await part(place, "status").text_content() or "")

    await eventually(is_estimated, within=60)
    await expect(part(place, "status")).to_have_text(re.compile(r"^you are number \d+ of \d+, about"))


async def test_a_wait_counts_down_but_not_below_the_share_of_the_places_ahead(page: Page, line: Line) -> None:
    """Told by hand, and by a clock of the test's own: a real estimate is another one each time."""
    await put(line, "mine")
    place = await embed(page, line.name, "mine")
    status = part(place, "status")
    await expect(status).to_have_text("you are number 1 of 1")
    await page.clock.install()
    tell = """(place, [position, p50]) =>
        place.told({position: {position, length: "12", state: "STATE_WAITING", eta: {known: true, p50, p90: p50}}})"""
    await place.evaluate(tell, ["5", "40s"])
    await expect(status).to_have_text("you are number 5 of 12, about 40 s")
    await page.clock.run_for(6_000)
    await expect(status).to_have_text("you are number 5 of 12, about 35 s")
    await page.clock.run_for(26_000)
    await expect(status).to_have_text("you are number 5 of 12, about 35 s")
    await place.evaluate(tell, ["1", "3.5s"])
    await expect(status).to_have_text("you are number 1 of 12, about 4 s")
    await page.clock.run_for(5_000)
    await expect(status).to_have_text("you are number 1 of 12, any moment now")


async def test_several_jobs_share_a_stream_and_each_has_its_own_place(page: Page, line: Line) -> None:
    streams: list[str] = []
    page.on("request", lambda asked: streams.append(asked.url) if asked.url.endswith("/events") else None)
    ids = [f"job {n}" for n in range(1, 9)]
    await put(line, *ids)
    places = await embed(page, line.name, *ids)
    for n in range(8):
        await expect(part(places.nth(n), "status")).to_have_text(f"you are number {n + 1} of 8")
    assert len(streams) == 1
    await finish(line, b"first")
    await expect(part(places.nth(0), "result")).to_have_text("first")
    await expect(part(places.nth(7), "status")).to_have_text(re.compile("number 7 of 7"))


async def test_a_job_is_withdrawn_by_its_button(page: Page, line: Line) -> None:
    await page.goto("/example")
    place = await submit(page, line.name)
    await expect(place).to_have_attribute("state", "waiting")
    await page.get_by_role("button", name="Withdraw say hello").press("Enter")
    await expect(part(place, "status")).to_have_text("withdrawn")
    await expect(page.get_by_role("button", name="Withdraw say hello")).to_be_hidden()
    assert (await line.counts()).withdrawn == 1


@pytest.mark.parametrize("is_attended", [True, False])
async def test_closing_the_tab_withdraws_an_attended_job_only(page: Page, line: Line, *, is_attended: bool) -> None:
    tab = await page.context.new_page()
    await tab.goto("/example")
    if is_attended:
        await tab.get_by_label("Withdraw it when I close this page").check()
    place = await submit(tab, line.name)
    await expect(part(place, "status")).to_have_text("you are number 1 of 1")
    await tab.close()
    if is_attended:
        await eventually(lambda: _is_withdrawn(line), within=20)
    else:
        assert (await line.counts()).length == 1


async def _is_withdrawn(line: Line) -> bool:
    return (await line.counts()).withdrawn == 1


async def test_an_attended_place_that_is_moved_on_its_page_stays_and_one_that_is_taken_out_leaves(
    page: Page, line: Line
) -> None:
    await put(line, "mine")
    place = await embed(page, line.name, "mine", attended="")
    await expect(part(place, "status")).to_have_text("you are number 1 of 1")
    await place.evaluate("place => document.querySelector('main').prepend(place)")
    await put(line, "another")
    await expect(part(place, "status")).to_have_text("you are number 1 of 1")
    assert (await line.counts()).withdrawn == 0
    await place.evaluate("place => place.remove()")
    await eventually(lambda: _is_withdrawn(line), within=20)


async def test_moving_back_is_told(page: Page, line: Line) -> None:
    await put(line, "first", "mine")
    delivery = await line.take_one()
    place = await embed(page, line.name, "mine")
    await expect(part(place, "status")).to_have_text("you are number 1 of 1")
    await line.delay(delivery.lease, delay_ms=0)
    await expect(part(place, "status")).to_have_text("you are number 2 of 2")
    await expect(part(place, "note")).to_have_text("moved back: others came in ahead")


async def test_what_a_page_is_told_it_can_hear_and_read_out_but_not_each_step(page: Page, line: Line) -> None:
    await put(line, *(f"job {n}" for n in range(6)), "mine")
    place = await embed(page, line.name, "mine", label="Mine")
    await expect(part(place, "status")).to_have_text("you are number 7 of 7")
    await place.evaluate(
        """place => {
            window.heard = [], window.spoken = [];
            for (const name of ["position", "progress", "finished"])
                document.body.addEventListener(name, event => heard.push([name, event.detail.position ?? null]));
            const told = place.shadowRoot.querySelector("[role=status]");
            new MutationObserver(() => spoken.push(told.textContent)).observe(told, {childList: true});
        }"""
    )
    for left in (6, 5, 4):
        await finish(line)
        await expect(part(place, "status")).to_have_text(re.compile(f"number {left} of {left}"))
    heard = await page.evaluate("heard")
    assert list(dict.fromkeys(map(tuple, heard))) == [("position", 6), ("position", 5), ("position", 4)]
    assert len(await page.evaluate("spoken")) < 3
    await line.stub.Withdraw(pb.WithdrawRequest(queue=line.name, message_ids=["mine"]))
    await expect(part(place, "announcement")).to_have_text("withdrawn")
    assert (await page.evaluate("heard"))[-1][0] == "finished"


async def test_progress_is_read_out_now_and_then(page: Page, line: Line) -> None:
    """Told by hand, and by a clock of the test's own."""
    await put(line, "mine")
    place = await embed(page, line.name, "mine")
    told = part(place, "announcement")
    await expect(told).to_have_text("you are number 1 of 1")
    await page.clock.install()
    tell = "(place, fraction) => place.told({leased: {attempt: 1, progress: {fraction}}})"
    await place.evaluate(tell, 0.1)
    await expect(told).to_have_text("being worked on 0 %")
    for fraction in (0.3, 0.55, 0.8):
        await place.evaluate(tell, fraction)
        await page.clock.run_for(500)
        assert await told.text_content() == "being worked on 0 %"
    await page.clock.run_for(15_000)
    await expect(told).to_have_text("being worked on 75 %")


async def test_what_jobs_say_is_text(page: Page, line: Line) -> None:
    await put(line, HOSTILE)
    place = await embed(page, line.name, HOSTILE, label=HOSTILE)
    await expect(part(place, "status")).to_have_text("you are number 1 of 1")
    delivery = await line.take_one(lease_ms=60_000)
    progress = Progress(fraction=0.5, note=HOSTILE)
    request = pb.ExtendRequest(queue=line.name, leases=[delivery.lease], lease=span(60_000), progress=progress)
    await line.stub.Extend(request, timeout=SLACK_S)
    await expect(part(place, "note")).to_have_text(HOSTILE)
    await line.ack(delivery.lease, result=HOSTILE.encode())
    await expect(part(place, "result")).to_have_text(HOSTILE)
    assert await place.evaluate("place => place.shadowRoot.querySelector('img')") is None


async def test_a_result_that_is_no_text_is_downloaded(page: Page, line: Line, tmp_path: Path) -> None:
    await put(line, "../a b.bin")
    place = await embed(page, line.name, "../a b.bin")
    await finish(line, bytes(range(256)))
    async with page.expect_download() as waiting:
        await place.get_by_role("link", name="download the result").click()
    download = await waiting.value
    assert download.suggested_filename.endswith("a_b.bin")
    await download.save_as(tmp_path / "result")
    assert (tmp_path / "result").read_bytes() == bytes(range(256))


async def test_texts_can_be_of_another_language(page: Page, line: Line) -> None:
    await put(line, "mine")
    place = await embed(page, line.name, "mine")
    await place.evaluate("place => { place.texts = {waiting: 'Platz {position} von {length}'} }")
    await expect(part(place, "status")).to_have_text("Platz 1 von 1")


async def test_a_job_that_is_put_off_is_told_when_it_joins_the_line(page: Page, line: Line) -> None:
    await put(line, "mine")
    place = await embed(page, line.name, "mine")
    await expect(part(place, "status")).to_have_text("you are number 1 of 1")
    await line.delay(message_ids=["mine"], delay_ms=600_000)
    await expect(part(place, "status")).to_have_text(re.compile(r"^joins the line at (\S+, )?\d+:\d+"))


async def test_a_job_that_is_put_off_to_another_day_is_told_that_day(page: Page, line: Line) -> None:
    """Told by hand, and by a clock of the test's own, at noon wherever it is."""
    await put(line, "mine")
    place = await embed(page, line.name, "mine")
    await expect(part(place, "status")).to_have_text("you are number 1 of 1")
    await page.clock.set_fixed_time(await page.evaluate("new Date(2030, 4, 6, 12).getTime() / 1000"))
    for hours, shown in ((11, "toLocaleTimeString"), (13, "toLocaleString")):
        due = await place.evaluate(
            """(place, [hours, shown]) => {
                const due = new Date(2030, 4, 6, 12 + hours);
                place.told({position: {state: "STATE_DELAYED", availableAt: due.toISOString()}});
                return due[shown]();
            }""",
            [hours, shown],
        )
        await expect(part(place, "status")).to_have_text(f"joins the line at {due}")
        assert ("2030" in due) is (hours == 13)


async def test_an_event_source_of_the_browser_follows_a_job_and_stops_when_all_is_told(page: Page, line: Line) -> None:
    await put(line, "mine")
    await page.goto("/example")
    await page.evaluate(
        """queue => {
            window.heard = [];
            window.source = new EventSource(`/queues/${queue}/events?id=mine`);
            for (const name of ["position", "leased", "finished"])
                source.addEventListener(name, event => heard.push(event.type));
        }""",
        line.name,
    )
    await eventually(lambda: page.evaluate("heard.length === 1"), within=SLACK_S)
    await finish(line)
    await eventually(lambda: page.evaluate("source.readyState === EventSource.CLOSED"), within=30)
    heard = await page.evaluate("heard")
    assert heard[0] == "position"
    assert heard.count("finished") == 1
    assert heard[-1] == "finished"


async def test_an_id_that_nobody_knows_is_told(page: Page, line: Line) -> None:
    place = await embed(page, line.name, "nobody")
    await expect(part(place, "status")).to_have_text("nothing is known of it")
    await expect(part(place, "note")).to_have_text("no such message is known")


async def test_a_service_that_knows_its_callers_is_brought_a_token(
    elsewhere: Page, make_service: Callable[..., ServiceProcess], short_dir: Path
) -> None:
    file = write_callers(short_dir / "callers.toml", PLAIN.values())
    service = make_service(HEADWAY_HTTP_LISTEN="127.0.0.1:0", HEADWAY_AUTH_FILE=str(file))
    async with grpc.aio.insecure_channel(service.address) as channel:
        create = pb.CreateRequest(queue="q")
        await QueueServiceStub(channel).Create(create, metadata=PLAIN["admin"].metadata, timeout=SLACK_S)
    await elsewhere.goto(f"{base_url(service)}/example?queue=q&job=mine")
    place = elsewhere.locator("headway-place")
    await expect(part(place, "status")).to_have_text(re.compile("cannot be watched"))
    await elsewhere.get_by_role("button", name="Submit").click()
    await expect(elsewhere.get_by_role("alert")).not_to_be_empty()
    await elsewhere.get_by_text("The service wants to know who I am").click()
    await elsewhere.get_by_label("Token").fill(PLAIN["producer"].token)
    await elsewhere.get_by_role("button", name="Submit").click()
    await expect(part(place.first, "status")).to_have_text("you are number 1 of 1")
    await place.last.evaluate("(place, token) => { place.token = async () => token }", PLAIN["watcher"].token)
    await expect(part(place.last, "status")).to_have_text("nothing is known of it")


async def test_an_attended_place_goes_on_with_the_token_of_now_when_the_last_has_run_out(
    elsewhere: Page, make_service: Callable[..., ServiceProcess], short_dir: Path
) -> None:
    old, new, admin = Caller(roles=("producer",)), Caller(roles=("producer",)), PLAIN["admin"]
    file = write_callers(short_dir / "callers.toml", [old, new, admin])
    service = make_service(HEADWAY_HTTP_LISTEN="127.0.0.1:0", HEADWAY_AUTH_FILE=str(file))
    async with grpc.aio.insecure_channel(service.address) as channel:
        line = line_of(channel, admin, "q")
        await line.create()
        await put(line, "mine")
        delivery = await line.take_one(lease_ms=600_000)
        streams: list[str] = []
        elsewhere.on("request", lambda sent: streams.append(sent.url) if sent.url.endswith("/WatchPosition") else None)
        await elsewhere.goto(f"{base_url(service)}/example")
        place = await _attend(elsewhere, old.token, new.token)
        await expect(part(place, "status")).to_have_text("being worked on")
        write_callers(file, [new, admin])
        await eventually(lambda: len(streams) == 2, within=SLACK_S)
        await line.ack(delivery.lease, result=b"all the same")
        await expect(part(place, "result")).to_have_text("all the same")
        await expect(part(await _attend(elsewhere, old.token), "status")).to_have_text(re.compile("cannot be watched"))


async def _attend(page: Page, *tokens: str) -> Locator:
    """An attended place of the message "mine", which brings one of the tokens after the other, and then the last."""
    await page.evaluate(
        """tokens => {
            const place = document.createElement("headway-place");
            Object.assign(place, {queue: "q", message: "mine", attended: true});
            place.token = () => tokens.length > 1 ? tokens.shift() : tokens[0];
            document.querySelector("main").append(place);
        }""",
        list(tokens),
    )
    return page.locator("main > headway-place").last


# -- a service that comes and goes, and other sites -------------------------------------------------------------------


@pytest.fixture
async def elsewhere(browser: Browser) -> AsyncIterator[Page]:
    """A page of no service; errors that it meets are part of these tests."""
    context = await browser.new_context()
    context.set_default_timeout(LONG_MS)
    yield await context.new_page()
    await context.close()


async def test_a_queue_that_is_not_there_is_told_and_can_be_made(
    elsewhere: Page, pages: ServiceProcess, line: Line
) -> None:
    await elsewhere.goto(f"{base_url(pages)}/example")
    await elsewhere.get_by_label("Queue").fill(f"{line.name} 2/ä")
    await elsewhere.get_by_role("button", name="Submit").click()
    await expect(elsewhere.get_by_role("alert")).to_contain_text("there is no queue")
    await elsewhere.get_by_role("button", name="Make the queue").click()
    await expect(elsewhere.locator("headway-place")).to_have_attribute("state", "waiting")


async def test_a_restart_of_the_service_is_survived(
    elsewhere: Page, make_service: Callable[..., ServiceProcess]
) -> None:
    service = make_service(HEADWAY_HTTP_LISTEN="127.0.0.1:0")
    url = base_url(service)
    address = url.removeprefix("http://")
    async with grpc.aio.insecure_channel(service.address) as channel:
        line = Line(QueueServiceStub(channel), "q")
        await line.create()
        await put(line, "done", "first", "mine")
        await elsewhere.goto(f"{url}/example?queue=q&job=mine&job=done")
        done, place = elsewhere.locator("headway-place").first, elsewhere.locator("headway-place").last
        await finish(line, b"long ago")
        await expect(part(done, "result")).to_have_text("long ago")
        await expect(part(place, "status")).to_have_text(re.compile("you are number 2 of 2"))
    event_ids: list[str | None] = []
    elsewhere.on("request", lambda asked: event_ids.append(asked.headers.get("last-event-id")))
    assert await asyncio.to_thread(service.stop) == 0
    await expect(part(place, "connection")).to_have_text("connection lost, trying again")
    service.env["HEADWAY_HTTP_LISTEN"] = address
    await asyncio.to_thread(service.start)
    async with grpc.aio.insecure_channel(service.address) as channel:
        line = Line(QueueServiceStub(channel), "q")
        await finish(line)
        await expect(part(place, "status")).to_have_text(re.compile("you are number 1 of 1"))
        await expect(part(place, "connection")).to_be_hidden()
        await finish(line, b"after all")
        await expect(part(place, "result")).to_have_text("after all")
    assert all(event_ids), "what had been told to its end was asked for again"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Another site: its origin, and the folder of its pages."""
    handler = partial(_Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", tmp_path
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None: ...


async def test_a_page_of_another_site_needs_two_lines_and_to_be_named(
    elsewhere: Page, site: tuple[str, Path], make_service: Callable[..., ServiceProcess]
) -> None:
    origin, folder = site
    for name, origins in (("named", origin), ("unnamed", "https://jobs.example")):
        service = make_service(HEADWAY_HTTP_LISTEN="127.0.0.1:0", HEADWAY_HTTP_ORIGINS=origins)
        async with grpc.aio.insecure_channel(service.address) as channel:
            line = Line(QueueServiceStub(channel), "q")
            await line.create()
            await put(line, "first", "mine")
        (folder / f"{name}.html").write_text(
            f'<!doctype html><script type="module" src="{base_url(service)}/place.js"></script>\n'
            '<headway-place queue="q" message="mine"></headway-place>'
            f"<script>document.querySelector('headway-place').texts = {{waiting: '{name}: {{position}}'}}</script>"
        )
    await elsewhere.goto(f"{origin}/named.html")
    await expect(part(elsewhere.locator("headway-place"), "status")).to_have_text("named: 2")
    async with elsewhere.expect_event("console", lambda said: "CORS" in said.text):
        await elsewhere.goto(f"{origin}/unnamed.html")
