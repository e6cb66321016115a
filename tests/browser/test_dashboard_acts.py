"""What an operator does at the dashboard, who may, and how it bears a service that goes away."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from playwright.async_api import Browser, Locator, Page, expect

from browser.dashboards import WITHIN_MS, assert_accessible, look_at, press, queue_path, tab_to
from harness import ServiceProcess, StoreServer
from headway.v1 import queue_pb2
from headway.v1.admin_service_pb2_grpc import AdminServiceStub
from headway.v1.queue_service_pb2_grpc import QueueServiceStub
from security.callers import PLAIN, Caller, line_of, write_callers
from wire.calls import Line, Message
from wire.operators import with_dead

Start = Callable[..., ServiceProcess]


@asynccontextmanager
async def page_of(browser: Browser, service: ServiceProcess) -> AsyncIterator[Page]:
    """A page whose addresses start at this service."""
    context = await browser.new_context(base_url=service.http)
    context.set_default_timeout(WITHIN_MS)
    refused: list[str] = []
    page = await context.new_page()
    page.on("pageerror", lambda error: refused.append(str(error)))
    page.on("console", lambda said: refused.append(said.text) if "Security Policy" in said.text else None)
    yield page
    await context.close()
    assert not refused


@pytest.fixture
def start(make_service: Start, store_server: StoreServer) -> Start:
    """A service of one's own with a dashboard, on the shared store."""

    def started(**env: str) -> ServiceProcess:
        prefix = f"d{uuid.uuid4().hex[:8]}"
        listen = {"HEADWAY_HTTP_LISTEN": "127.0.0.1:0"}
        return make_service(HEADWAY_REDIS_URL=store_server.url, PRESSURE_PREFIX=prefix, **{**listen, **env})

    return started


@pytest.fixture
async def acting(start: Start) -> AsyncIterator[tuple[ServiceProcess, Line]]:
    """A service whose dashboard acts for everybody, and a queue."""
    service = start(HEADWAY_DASHBOARD_ACTIONS="true")
    async with grpc.aio.insecure_channel(service.address) as channel:
        yield service, Line(QueueServiceStub(channel), "jobs/mail", AdminServiceStub(channel))


def tile(page: Page, title: str) -> Locator:
    return page.locator(".tile", has_text=title).locator("dd").first


async def test_an_operator_pauses_redrives_and_purges(browser: Browser, acting: tuple[ServiceProcess, Line]) -> None:
    service, line = acting
    await with_dead(line, 4)
    async with page_of(browser, service) as page:
        await look_at(page, queue_path(line.name))

        await page.get_by_role("button", name="Pause").click()
        await expect(page.locator("h1 .badge")).to_have_text("paused")
        assert (await line.describe()).paused
        await page.get_by_role("button", name="Resume").click()
        await expect(page.locator("h1 .badge")).to_have_count(0)

        await page.get_by_role("button", name="Put back m2").click()
        await expect(page.get_by_text("1 put back into the line")).to_be_visible()
        await expect(page.get_by_role("region", name="In line").get_by_role("link")).to_have_text(["m2"])
        await page.get_by_role("button", name="Put all back").click()
        await expect(page.get_by_text("None is dead")).to_be_visible()
        await expect(page.get_by_role("region", name="In line").get_by_role("link")).to_have_count(4)
        assert (await line.counts()).dead == 0

        await page.get_by_role("button", name="Purge…").click()
        purge = page.get_by_role("dialog").get_by_role("button", name="Purge")
        await expect(purge).to_be_disabled()
        await assert_accessible(page)
        await page.get_by_role("dialog").get_by_role("textbox").fill("jobs/mai")
        await expect(purge).to_be_disabled()
        await page.keyboard.press("Enter")  # nor like this
        assert (await line.counts()).length == 4
        await page.get_by_role("dialog").get_by_role("textbox").fill("jobs/mail")
        await purge.click()
        await expect(page.get_by_text("Purged: 4 waiting, 0 delayed, 0 dead")).to_be_visible()
        await expect(page.get_by_text("Nobody waits")).to_be_visible()
        assert (await line.counts()).length == 0


async def test_the_keyboard_alone_reaches_and_does_everything(
    browser: Browser, acting: tuple[ServiceProcess, Line]
) -> None:
    service, line = acting
    await with_dead(line, 1)
    async with page_of(browser, service) as page:
        await look_at(page, "/dashboard/")
        await tab_to(page, ".skip")
        await tab_to(page, "#theme")
        await press(page, "Enter")
        await expect(page.locator("#theme")).to_have_text("Theme: light")
        await tab_to(page, "#filter")
        async with page.expect_request(lambda request: "prefix=jobs" in request.url):
            await page.keyboard.type("jobs")
        await expect(page.locator("tr[data-queue]")).to_have_count(1)
        await tab_to(page, "thead button")
        await press(page, "Enter")
        await expect(page.locator("thead th").first).to_have_attribute("aria-sort", "descending")
        await tab_to(page, "tr[data-queue] a")
        await press(page, "Enter")

        await expect(page.locator("h1")).to_be_focused()
        await expect(page.get_by_role("button", name="Pause")).to_be_visible()
        await tab_to(page, ".head button")
        await press(page, "Enter")
        await expect(page.get_by_role("button", name="Resume")).to_be_visible()
        await tab_to(page, ".head button.danger")
        await press(page, "Enter")
        await expect(page.locator("#purge-name")).to_be_focused()
        await press(page, "Escape")
        await expect(page.get_by_role("dialog")).to_be_hidden()
        await expect(page.locator(".head button.danger")).to_be_focused()
        await press(page, "Enter")
        await page.keyboard.type("jobs/mail")
        await press(page, "Shift+Tab", "Space")
        await expect(page.locator("#purge-dead")).to_be_checked()
        await press(page, "Tab", "Enter")
        await expect(page.get_by_text("Purged: 0 waiting, 0 delayed, 1 dead")).to_be_visible()
        await line.put(Message(id="one", payload=b"x"))
        await expect(page.get_by_role("link", name="one")).to_be_visible()
        await tab_to(page, "a.id")
        await press(page, "Enter")
        await expect(page.locator(".place")).to_have_text("Number 1 of 1")


async def test_where_callers_are_known_it_asks_who_one_is(browser: Browser, start: Start, short_dir: Path) -> None:
    callers = write_callers(short_dir / "callers.toml", PLAIN.values())
    service = start(HEADWAY_AUTH_FILE=str(callers))
    async with grpc.aio.insecure_channel(service.address) as channel, page_of(browser, service) as page:
        line = line_of(channel, PLAIN["admin"], "mail")
        await line.create(retry=queue_pb2.Retry(max_attempts=1))

        async def enter(token: str, button: str) -> None:
            await page.get_by_role("button", name=button).click()
            await page.get_by_label("Token").fill(token)
            await page.keyboard.press("Enter")

        await page.goto("/dashboard/")
        await expect(page.get_by_role("heading", name="This service asks who you are")).to_be_visible()
        await assert_accessible(page)
        assert "mail" not in await page.locator("main").inner_text()
        await enter("made-up", "Enter a token")
        await expect(page.get_by_role("button", name="Enter another token")).to_be_visible()
        await enter(PLAIN["watcher"].token, "Enter another token")
        await page.get_by_role("link", name="mail").click()
        await expect(page.get_by_text("Read only: actions need the admin role")).to_be_visible()
        await expect(page.get_by_text("Not shown: ")).to_have_count(3)
        await expect(page.get_by_role("button", name="Pause")).to_be_hidden()

        await enter(PLAIN["admin"].token, "Token…")
        await page.get_by_role("button", name="Pause").click()
        await expect(page.get_by_role("button", name="Resume")).to_be_visible()
        assert (await line.describe()).paused

        assert await page.evaluate("Object.keys(localStorage).join() + document.cookie") == ""
        assert await page.evaluate("sessionStorage.length") == 1
        await enter("", "Token…")
        await expect(page.get_by_role("heading", name="This service asks who you are")).to_be_visible()
        assert await page.evaluate("sessionStorage.length") == 0


async def test_who_may_see_some_queues_only_types_how_their_names_begin(
    browser: Browser, start: Start, short_dir: Path
) -> None:
    some = Caller(roles=("watcher",), queues=("mail-*",))
    service = start(HEADWAY_AUTH_FILE=str(write_callers(short_dir / "callers.toml", [PLAIN["admin"], some])))
    async with grpc.aio.insecure_channel(service.address) as channel, page_of(browser, service) as page:
        for name in ("mail-in", "mail-out", "pay"):
            await line_of(channel, PLAIN["admin"], name).create()
        await page.goto("/dashboard/")
        await page.get_by_role("button", name="Enter a token").click()
        await page.get_by_label("Token").fill(some.token)
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("You may not see all queues")).to_be_visible()
        await assert_accessible(page)
        for typed, told, shown in (
            ("mail-", "Live", ["mail-in", "mail-out"]),
            ("pay", "Not allowed", []),
            ("mail-o", "Live", ["mail-out"]),
        ):
            await page.get_by_label("Filter by name").fill(typed)
            await expect(page.locator("tr[data-queue] a")).to_have_text(shown)
            await expect(page.locator("#link-text")).to_have_text(told)
        await page.get_by_role("link", name="mail-out").click()
        await expect(page.get_by_role("heading", name="mail-out")).to_be_visible()


async def test_a_caller_who_loses_the_role_is_told_so(browser: Browser, start: Start, short_dir: Path) -> None:
    file = short_dir / "callers.toml"
    service = start(HEADWAY_AUTH_FILE=str(write_callers(file, [PLAIN["admin"]])))
    async with grpc.aio.insecure_channel(service.address) as channel, page_of(browser, service) as page:
        await line_of(channel, PLAIN["admin"], "mail").create()
        await page.goto("/dashboard/")
        await page.get_by_role("button", name="Enter a token").click()
        await page.get_by_label("Token").fill(PLAIN["admin"].token)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("link", name="mail")).to_be_visible()
        write_callers(file, [PLAIN["watcher"]])
        await expect(page.get_by_role("heading", name="This service asks who you are")).to_be_visible()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


async def test_it_goes_on_when_the_service_was_restarted(browser: Browser, start: Start) -> None:
    service = start(HEADWAY_HTTP_LISTEN=f"127.0.0.1:{free_port()}", HEADWAY_LISTEN=f"127.0.0.1:{free_port()}")
    async with page_of(browser, service) as page:
        async with grpc.aio.insecure_channel(service.address) as channel:
            line = Line(QueueServiceStub(channel), "mail")
            await line.create()
            await look_at(page, queue_path("mail"))
        await asyncio.to_thread(service.stop)
        await expect(page.locator("#link-text")).to_have_text("Reconnecting…")
        await asyncio.to_thread(service.start)
        await expect(page.locator("#link-text")).to_have_text("Live")
        async with grpc.aio.insecure_channel(service.address) as channel:
            line = Line(QueueServiceStub(channel), "mail")
            await line.put(b"x", b"y")
            await expect(tile(page, "Length")).to_have_text("2")
