"""Short words for what a person does at the dashboard."""

from __future__ import annotations

from urllib.parse import quote

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, expect

from wire.calls import SLACK_S

WITHIN_MS = 2 * SLACK_S * 1000  # machines stall
expect.set_options(timeout=WITHIN_MS)


def queue_path(queue: str, message: str = "") -> str:
    """The page of a queue, or of one of its messages."""
    path = f"/dashboard/#/queues/{quote(queue, safe='')}"
    return f"{path}/messages/{quote(message, safe='')}" if message else path


async def look_at(page: Page, path: str) -> None:
    """Opens a page of the dashboard and waits until it is live."""
    await page.goto("about:blank")  # an address that differs by its fragment alone would not be loaded anew
    await page.goto(path)
    await expect(page.locator("#link-text")).to_have_text("Live")


async def press(page: Page, *keys: str) -> None:
    """One after the other."""
    for key in keys:
        await page.keyboard.press(key)


async def tab_to(page: Page, selector: str, *, most: int = 60) -> None:
    """Reaches it by the keyboard alone."""
    for _ in range(most):
        await page.keyboard.press("Tab")
        if await page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"the keyboard does not reach {selector}")


async def assert_accessible(page: Page) -> None:
    """axe-core has nothing to say."""
    found = await Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
