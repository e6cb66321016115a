"""The official connect-web client in a page, asked from here. What runs there is page.mts of the TypeScript driver."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page

from conformance.languages import LANGUAGES, ROOT, build_once, run_id, skip_without_toolchain
from wire.calls import SLACK_S

PAGES = ROOT / "clients/typescript/build/pages"
Json = dict[str, Any]


class Refused(Exception):
    """A call that failed; `said` is what the client made of it."""

    def __init__(self, said: Json) -> None:
        super().__init__(str(said))
        self.said = said


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream that the page has open."""

    page: Page
    number: int

    async def next(self) -> Json | None:
        """What it tells next; None at its end. Raises Refused."""
        return _ok(await self.page.evaluate("number => headway.next(number)", self.number))

    async def until(self, kind: str) -> Json:
        """The content of the first that tells of this kind. Raises Refused."""
        while (told := await self.next()) is not None:
            if kind in told:
                found: Json = told[kind]
                return found
        raise AssertionError(f"it ended before it told of {kind}")

    async def abort(self) -> None:
        """Leaves it, as a page does by an AbortController."""
        await self.page.evaluate("number => headway.abort(number)", self.number)


@dataclass(frozen=True, slots=True)
class Program:
    """One page and the client in it."""

    page: Page

    async def connect(self, protocol: str, url: str, token: str | None = None, *, binary: bool | None = None) -> None:
        """Calls go to this URL from now on, by "connect" or "grpc-web"; `binary` unset: as the transport likes it."""
        script = "each => headway.connect(...each.map(one => one ?? undefined))"
        await self.page.wait_for_function("globalThis.headway !== undefined")  # a module runs when it is its turn
        await self.page.evaluate(script, [protocol, url, token, binary])

    async def call(self, rpc: str, timeout_ms: int | None = None, **request: Any) -> Json:
        """The answer. Raises Refused."""
        script = "([rpc, request, ms]) => headway.call(rpc, request, ms ?? undefined)"
        answer = _ok(await self.page.evaluate(script, [rpc, request, timeout_ms]))
        assert answer is not None
        return answer

    async def open(self, rpc: str, timeout_ms: int | None = None, **request: Any) -> Stream:
        """A stream of answers."""
        script = "([rpc, request, ms]) => headway.open(rpc, request, ms ?? undefined)"
        return Stream(self.page, await self.page.evaluate(script, [rpc, request, timeout_ms]))


def _ok(told: Json) -> Json | None:
    if "error" in told:
        raise Refused(told["error"])
    ok: Json | None = told.get("ok")
    return ok


def built_pages() -> None:
    """Sees to it that what pages load is built; skips the test where the toolchain is absent, or fails it under CI."""
    language = LANGUAGES["typescript"]
    skip_without_toolchain(language)
    if failure := build_once(language, run_id()):
        pytest.fail(f"what pages load is not built\n{failure}", pytrace=False)


def bundled(source: str, into: Path) -> Path:
    """A page's program from its TypeScript, with all that it imports."""
    package = PAGES.parents[1]
    words = ["npx", "esbuild", "--bundle", "--format=esm", "--loader=ts", "--log-level=warning", f"--outfile={into}"]
    subprocess.run(words, cwd=package, input=source, text=True, check=True, timeout=60)
    return into


@asynccontextmanager
async def opened(browser: Browser, url: str, program: Path = PAGES / "page.js") -> AsyncIterator[Page]:
    """A page at this address that runs the program, in a context of its own. Fails if the program met a defect."""
    context = await browser.new_context()
    context.set_default_timeout(SLACK_S * 1000)
    page = await context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        await page.goto(url)
        await page.add_script_tag(path=program, type="module")
        yield page
    finally:
        await context.close()
    assert not errors, errors
