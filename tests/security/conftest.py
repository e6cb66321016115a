"""A service that knows its callers, on the shared store."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import grpc
import pytest

from harness import ServiceProcess, StoreServer
from security.callers import EXPIRED, OTHERS, PLAIN, TEAM, write_callers


@pytest.fixture(scope="module")
def guarded_service(store_server: StoreServer, session_dir: Path) -> Iterator[ServiceProcess]:
    """Shared by the tests of a module: do not stop it."""
    folder = session_dir / f"guarded-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    callers = [*TEAM.values(), *OTHERS.values(), *PLAIN.values(), EXPIRED]
    env = {
        "HEADWAY_REDIS_URL": store_server.url,
        "PRESSURE_PREFIX": f"g{uuid.uuid4().hex[:8]}",
        "HEADWAY_AUTH_FILE": str(write_callers(folder / "callers.toml", callers)),
    }
    process = ServiceProcess(folder, env=env)
    try:
        yield process.start()
    finally:
        process.stop()


@pytest.fixture
async def guarded_channel(
    guarded_service: ServiceProcess, connect: Callable[[str], grpc.aio.Channel]
) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to it."""
    async with connect(guarded_service.address) as channel:
        yield channel


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"q-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def start(make_service: Callable[..., ServiceProcess], store_server: StoreServer) -> Callable[..., ServiceProcess]:
    """Starts a service of one's own on the shared store: `start(HEADWAY_AUTH_FILE=…)`."""

    def on_the_store(**env: str) -> ServiceProcess:
        return make_service(HEADWAY_REDIS_URL=store_server.url, **env)

    return on_the_store
