"""The dashboard, as a person with a browser meets it."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator

import grpc
import pytest
from playwright.async_api import Page, Route, expect

from browser.dashboards import assert_accessible, look_at, queue_path
from harness import ServiceProcess, eventually
from headway.v1 import message_pb2, queue_pb2, queue_service_pb2
from headway.v1.queue_service_pb2_grpc import QueueServiceStub
from wire.calls import SLACK_S, Line, Message, leases, span

QUEUES = 50


async def take(line: Line, count: int = 1, *, consumer: str) -> list[message_pb2.Delivery]:
    request = queue_service_pb2.GetRequest(queue=line.name, max_messages=count, consumer=consumer, lease=span(600_000))
    return list((await line.stub.Get(request, timeout=SLACK_S)).deliveries)


async def lengths(page: Page) -> dict[str, str]:
    """As they are shown, by queue."""
    rows = "rows => rows.map(row => [row.dataset.queue, row.cells[1].textContent])"
    shown: list[list[str]] = await page.locator("tr[data-queue]").evaluate_all(rows)
    return {each[0]: each[1] for each in shown}


@pytest.fixture
async def fifty(pages: ServiceProcess) -> AsyncIterator[list[Line]]:
    """Queues of one prefix."""
    prefix = f"load-{uuid.uuid4().hex[:6]}"
    async with grpc.aio.insecure_channel(pages.address) as channel:
        stub = QueueServiceStub(channel)
        made = [Line(stub, f"{prefix}-{number:02d}") for number in range(QUEUES)]
        await asyncio.gather(*(each.create() for each in made))
        yield made


async def work(line: Line) -> None:
    """Puts and acks, for ever."""
    while True:
        count = random.randint(1, 5)
        await line.put(*(b"x" for _ in range(count)))
        await line.ack(*leases(await line.take(random.randint(1, count))))
        await asyncio.sleep(0.05)


async def test_it_follows_fifty_queues_under_load_without_falling_behind(page: Page, fifty: list[Line]) -> None:
    prefix = fifty[0].name.rpartition("-")[0]
    still, busy = fifty[:10], fifty[10:]
    await look_at(page, "/dashboard/")
    await page.get_by_label("Filter by name").fill(prefix)
    await expect(page.locator("tr[data-queue]")).to_have_count(QUEUES)
    async with asyncio.TaskGroup() as tasks:
        working = [tasks.create_task(work(line)) for line in busy]
        for number in range(1, 4):  # what changes while all others are busy is shown, too
            await asyncio.gather(*(line.put(*[b"x"] * (at + 1)) for at, line in enumerate(still)))
            expected = {line.name: str(number * (at + 1)) for at, line in enumerate(still)}

            async def shows_the_still_ones(expected: dict[str, str] = expected) -> bool:
                return expected.items() <= (await lengths(page)).items()

            await eventually(shows_the_still_ones, within=SLACK_S)
        for task in working:
            task.cancel()
        await asyncio.wait(working)

    async def shows_what_describe_tells() -> bool:
        told = {line.name: f"{(await line.describe()).counts.length:,}" for line in fifty}
        return await lengths(page) == told

    await eventually(shows_what_describe_tells, within=SLACK_S)
    totals = page.locator(".sums div", has_text="Length").locator("dd")
    whole = sum([(await line.describe()).counts.length for line in fifty])
    await expect(totals).to_have_text(f"{whole:,}")


async def test_it_opens_one_stream_at_a_time(page: Page, line: Line) -> None:
    streams: list[str] = []
    ended: list[str] = []
    page.on("request", lambda request: streams.append(request.url) if "/events" in request.url else None)
    for event in ("requestfinished", "requestfailed"):
        page.on(event, lambda request: ended.append(request.url) if "/events" in request.url else None)
    await line.put(Message(id="job", payload=b"x"))
    await look_at(page, "/dashboard/")
    await page.get_by_label("Filter by name").fill(line.name)
    await page.get_by_role("link", name=line.name).click()
    await page.get_by_role("link", name="job").click()
    await expect(page.locator(".place")).to_have_text("Number 1 of 1")

    assert f"queue={line.name}&message=job" in streams[-1]
    await eventually(lambda: len(ended) == len(streams) - 1, within=SLACK_S)


async def test_a_stream_that_is_not_even_begun_is_asked_for_anew(page: Page, line: Line) -> None:
    asked: list[Route] = []
    may_begin = asyncio.Event()

    async def silent_at_first(route: Route) -> None:
        asked.append(route)
        if len(asked) > 1:
            await may_begin.wait()
            await route.continue_()

    await page.clock.install()
    await page.route("**/events?*", silent_at_first)
    await page.goto(queue_path(line.name))
    await eventually(lambda: len(asked) == 1, within=SLACK_S)
    await page.clock.run_for(20_000)  # it goes on by itself, too
    await expect(page.locator("#link-text")).to_have_text("Connecting")
    await page.clock.run_for(20_000)
    await expect(page.locator("#link-text")).to_have_text("Reconnecting…")
    await page.clock.run_for(300)
    may_begin.set()
    await expect(page.locator("#link-text")).to_have_text("Live")


async def test_rows_are_sorted_by_what_one_asks_for(page: Page, fifty: list[Line]) -> None:
    few = fifty[:3]
    for count, line in zip((2, 9, 4), few, strict=True):
        await line.put(*[b"x"] * count)
    await look_at(page, "/dashboard/")
    await page.get_by_label("Filter by name").fill(fifty[0].name[:-1])  # the first ten
    await expect(page.locator("tr[data-queue]")).to_have_count(10)
    await page.get_by_role("button", name="Length").click()
    await expect(page.locator("thead th").nth(1)).to_have_attribute("aria-sort", "descending")
    expected = [few[1].name, few[2].name, few[0].name]

    async def is_sorted() -> bool:
        return list(await lengths(page))[:3] == expected

    await eventually(is_sorted, within=SLACK_S)


async def test_one_queue_is_shown_in_depth(page: Page, line: Line) -> None:
    await line.update("limit", "retry.max_attempts", limit=4, retry=queue_pb2.Retry(max_attempts=1))
    await line.put(*(Message(id=f"job-{number}", payload=b"x") for number in range(6)))
    failed, done, held = await take(line, 3, consumer="worker-7")
    await line.delay(failed.lease, delay_ms=0, reason="disk full")
    await line.ack(done.lease)
    progress = message_pb2.Progress(fraction=0.4, note="page 2 of 5")
    extend = queue_service_pb2.ExtendRequest(queue=line.name, leases=[held.lease], progress=progress)
    await line.stub.Extend(extend, timeout=SLACK_S)

    await look_at(page, queue_path(line.name))

    async def row(list_name: str, message: str) -> str:
        shown = page.get_by_role("region", name=list_name).get_by_role("row").filter(has_text=message)
        return " ".join((await shown.inner_text()).split())

    assert (await row("Being worked on", "job-2")).startswith("job-2 worker-7 1 ")
    assert "40 % page 2 of 5" in await row("Being worked on", "job-2")
    assert (await row("In line", "job-4")).startswith("job-4 2 ")
    assert "disk full" in await row("Dead", "job-0")
    await expect(page.locator(".tile", has_text="Slots").locator("dd").first).to_have_text("1 / 4")
    await expect(page.locator(".tile", has_text="Length").locator("dd").first).to_have_text("3")
    await expect(page.get_by_text("Read only", exact=True)).to_be_visible()
    await expect(page.get_by_role("button", name="Purge")).to_be_hidden()
    await expect(page.get_by_role("button", name="Put back")).to_have_count(0)


async def test_one_message_is_followed_to_its_result(page: Page, line: Line) -> None:
    await line.put(*(Message(id=name, payload=b"x") for name in ("first", "second", "mine")))
    await look_at(page, queue_path(line.name, "mine"))
    place = page.locator(".place")
    await expect(place).to_have_text("Number 3 of 3")
    for left in (2, 1):
        await line.ack((await line.take_one()).lease)
        await expect(place).to_have_text(f"Number {left} of {left}")
    mine = await line.take_one()
    await expect(place).to_have_text("Being worked on")
    extend = queue_service_pb2.ExtendRequest(
        queue=line.name, leases=[mine.lease], progress=message_pb2.Progress(fraction=0.75, note="nearly there")
    )
    await line.stub.Extend(extend, timeout=SLACK_S)
    await expect(page.get_by_role("progressbar")).to_have_attribute("value", "0.75")
    await expect(page.get_by_text("75 % nearly there")).to_be_visible()
    await line.ack(mine.lease, result=b"report.pdf")
    await expect(place).to_have_text("Done")
    await expect(page.locator(".result pre")).to_have_text("report.pdf")


async def test_hostile_names_are_only_text(page: Page, pages: ServiceProcess) -> None:
    name = f"<img src=x onerror=alert(1)>/{uuid.uuid4().hex[:6]}?#%2e"
    async with grpc.aio.insecure_channel(pages.address) as channel:
        line = Line(QueueServiceStub(channel), name)
        await line.create()
        await line.put(Message(id="<script>alert(1)</script>/..#?", payload=b"x"))
        await look_at(page, "/dashboard/")
        await page.get_by_label("Filter by name").fill(name)
        await page.get_by_role("link", name=name).click()
        await expect(page.locator("h1 .name")).to_have_text(name)
        await page.get_by_role("link", name="<script>alert(1)</script>/..#?").click()
        await expect(page.locator(".place")).to_have_text("Number 1 of 1")
        assert await page.locator("main img, main script").count() == 0


PAST = """async ({ noted, listed }) => {
  const { forgetUnlisted, note, series } = await import("/dashboard/history.js");
  for (const [name, ago_s] of Object.entries(noted)) {
    const asOf = new Date(Date.now() - ago_s * 1000).toISOString();
    note({ queue: { name, counts: { length: "3" } }, asOf });
  }
  if (listed) forgetUnlisted(listed);
  return ["idle", "gone", "left"].map(name => series(name, "length", 40, 2));
}"""


async def test_the_past_of_queues_that_are_not_listed_any_more_is_forgotten(page: Page, line: Line) -> None:
    await look_at(page, "/dashboard/")
    noted = {"idle": 400, "gone": 400, "left": 100}  # so many seconds ago
    assert await page.evaluate(PAST, {"noted": noted, "listed": ["idle"]}) == [[3, 3], [None, None], [3, 3]]
    await page.get_by_label("Filter by name").fill(line.name)

    async def forgets_by_itself() -> bool:
        told: list[list[int | None]] = await page.evaluate(PAST, {"noted": {}, "listed": None})
        return told == [[None, None], [None, None], [3, 3]]

    await eventually(forgets_by_itself, within=SLACK_S)


async def test_where_nothing_is_it_says_so(page: Page, pages: ServiceProcess) -> None:
    nowhere = f"nowhere-{uuid.uuid4().hex[:6]}"
    await look_at(page, "/dashboard/")
    await page.get_by_label("Filter by name").fill(nowhere)
    await expect(page.get_by_text("No queue’s name begins like this")).to_be_visible()
    await look_at(page, queue_path(nowhere))
    await expect(page.get_by_text("There is no such queue now")).to_be_visible()
    async with grpc.aio.insecure_channel(pages.address) as channel:
        await Line(QueueServiceStub(channel), nowhere).create()
        await expect(page.get_by_text("There is no such queue now")).to_be_hidden()
        await expect(page.get_by_text("Nobody waits")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_an_accessibility_check_passes_in_light_and_dark(page: Page, line: Line, scheme: str) -> None:
    await line.put(*(Message(id=f"job-{number}", payload=b"x") for number in range(3)))
    await take(line, consumer="worker-1")
    await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    for path in ("/dashboard/", queue_path(line.name), queue_path(line.name, "job-2"), queue_path("nowhere")):
        await look_at(page, path)
        if path == "/dashboard/":
            await page.get_by_label("Filter by name").fill(line.name)
            await expect(page.locator("tr[data-queue]")).to_have_count(1)
        await assert_accessible(page)
    ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(ground.split("(")[1].split(",")[0]) < 128) == (scheme == "dark")


async def test_the_theme_is_remembered(page: Page, line: Line) -> None:
    await look_at(page, queue_path(line.name))
    await page.get_by_role("button", name="Theme: system").click()
    await page.get_by_role("button", name="Theme: light").click()
    await look_at(page, "/dashboard/")
    await expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert await page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"


async def test_more_queues_than_a_page_follows_are_paged(page: Page, pages: ServiceProcess) -> None:
    prefix = f"many-{uuid.uuid4().hex[:6]}"
    async with grpc.aio.insecure_channel(pages.address) as channel:
        stub = QueueServiceStub(channel)
        await asyncio.gather(*(Line(stub, f"{prefix}-{number:03d}").create() for number in range(130)))
    await look_at(page, "/dashboard/")
    async with page.expect_request(lambda request: f"prefix={prefix}" in request.url):
        await page.get_by_label("Filter by name").fill(prefix)
    await expect(page.get_by_role("link", name=f"{prefix}-099")).to_be_visible()
    await expect(page.locator("tr[data-queue]")).to_have_count(100)
    await page.get_by_role("button", name="More queues").click()
    await expect(page.locator("tr[data-queue]")).to_have_count(30)
    await expect(page.get_by_role("link", name=f"{prefix}-129")).to_be_visible()
    await page.get_by_role("button", name="Back").click()
    await expect(page.locator("tr[data-queue]")).to_have_count(100)
