"""Everything else here stands on this: Chromium calls the service, and its page meets no error."""

from playwright.async_api import Page

from wire.calls import Line

_LENGTH = """async queue => {
    const reply = await fetch("/headway.v1.QueueService/Describe", {
        method: "POST",
        headers: {"content-type": "application/json"},
        body: JSON.stringify({queue}),
    });
    return (await reply.json()).queue.counts.length;
}"""


async def test_a_page_of_the_service_may_call_it(page: Page, line: Line) -> None:
    await line.put(b"one", b"two")

    await page.goto("/healthz")

    assert await page.evaluate(_LENGTH, line.name) == "2"
