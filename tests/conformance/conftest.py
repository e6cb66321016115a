"""Fixtures of the suite: the stage, and a driver for each language that outlives its scenarios."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from conformance.driving import DriverProcess
from conformance.languages import LANGUAGES, Language, Ready, build_once, language_of, run_id, skip_without_toolchain
from conformance.stage import Stage


@pytest.fixture(scope="session")
async def stage(session_dir: Path) -> AsyncIterator[Stage]:
    """A store and a service, shared by all scenarios of this worker."""
    folder = session_dir / "conformance"
    folder.mkdir()
    async with Stage(folder) as built:
        yield built


@pytest.fixture(scope="session")
def ready() -> Ready:
    """A language whose toolchain is here and whose driver is built; skips, or fails, otherwise."""

    def language(name: str) -> Language:
        found = LANGUAGES[name]
        skip_without_toolchain(found)
        if failure := build_once(found, run_id()):
            pytest.fail(f"{name}: its driver is not built\n{failure}", pytrace=False)
        return found

    return language


@pytest.fixture(scope="session")
async def driver_of(ready: Ready, session_dir: Path) -> AsyncIterator[Callable[[str], Awaitable[DriverProcess]]]:
    """The driver process of that name, started when it is first asked for, and again if it has died."""
    running: dict[str, DriverProcess] = {}

    async def driver(name: str) -> DriverProcess:
        language = ready(language_of(name))
        if name not in running or not running[name].is_running:
            running[name] = DriverProcess(language.command(language.drivers[name]), session_dir / f"driver-{name}.log")
            await running[name].start()
        return running[name]

    yield driver
    ended = {name: await driver.stop() for name, driver in running.items()}
    assert not any(ended.values()), f"drivers end with 0 when their stdin does: {ended}"
