"""A real Chromium, without a window, and a service with pages for it."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import grpc
import pytest
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright

from harness import ServiceProcess, StoreServer
from headway.v1.queue_service_pb2_grpc import QueueServiceStub
from web.conftest import base_url, http_service
from wire.calls import SLACK_S, Line

# Debian's name, and those of others.
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# Nothing but the page's own traffic.
_QUIET = (
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-gpu",
)


def chromium() -> str:
    """The browser's program; skips the test where there is none, fails it under CI."""
    for name in _PROGRAMS:
        if (found := shutil.which(name)) is not None:
            return found
    reason = "no Chromium on the path"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One for all tests of this worker; each has pages, storage and cookies of its own."""
    program = chromium()
    async with async_playwright() as playwright:
        # Root may not have a sandbox, and containers often cannot.
        launched = await playwright.chromium.launch(executable_path=program, args=_QUIET, chromium_sandbox=False)
        yield launched
        await launched.close()


@pytest.fixture
async def page(browser: Browser, pages: ServiceProcess) -> AsyncIterator[Page]:
    """A new page whose addresses start at the service. The test fails if the page met an error of its own, or one of
    its requests was refused by its policy."""
    context = await browser.new_context(base_url=base_url(pages))
    context.set_default_timeout(SLACK_S * 1000)
    opened = await context.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda said: errors.append(said.text) if _is_of_the_page(said) else None)
    yield opened
    await context.close()
    assert not errors


def _is_of_the_page(said: ConsoleMessage) -> bool:
    """An icon is what every browser asks for, also where no page named one."""
    return said.type == "error" and not said.location["url"].endswith("/favicon.ico")


@pytest.fixture(scope="session")
def pages(store_server: StoreServer, session_dir: Path) -> Iterator[ServiceProcess]:
    """A service with an HTTP port, shared by the tests of this worker: use queues of your own."""
    with http_service(store_server, session_dir / f"pages-{uuid.uuid4().hex[:6]}") as process:
        yield process


@pytest.fixture
async def line(pages: ServiceProcess) -> AsyncIterator[Line]:
    """A queue of the service, by gRPC."""
    async with grpc.aio.insecure_channel(pages.address) as channel:
        made = Line(QueueServiceStub(channel), f"page-{uuid.uuid4().hex[:8]}")
        await made.create()
        yield made


@pytest.fixture
def screenshot(request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """Where to keep a picture, by its name: docs/images with HEADWAY_SCREENSHOTS=1, else a folder of the test's own."""
    if os.environ.get("HEADWAY_SCREENSHOTS") == "1":
        folder = Path(__file__).parents[2] / "docs" / "images"
        folder.mkdir(exist_ok=True)
    else:
        folder = request.getfixturevalue("tmp_path")
    return lambda name: folder / f"{name}.png"
