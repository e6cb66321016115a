"""A service that knows its callers, on the shared store."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import grpc
import pytest

from harness import ServiceProcess, StoreServer, access
from security.callers import EXPIRED, OTHERS, PLAIN, TEAM, write_callers


@pytest.fixture(scope="module")
def guarded_service(store_server: StoreServer, session_dir: Path) -> Iterator[ServiceProcess]:
    """Shared by the tests of a module: do not stop it. To the store it is a user who may do no more than the documents
    say is needed, namespaces and quotas included."""
    mark = uuid.uuid4().hex[:8]
    folder, prefix, user = session_dir / f"guarded-{mark}", f"g{mark}", f"guarded-{mark}"
    folder.mkdir()
    with store_server.client() as client:
        access.allow(client, prefix=prefix, user=user)
    callers = [*TEAM.values(), *OTHERS.values(), *PLAIN.values(), EXPIRED]
    env = {
        "HEADWAY_REDIS_URL": access.url_of(store_server, user=user),
        "PRESSURE_PREFIX": prefix,
        "HEADWAY_AUTH_FILE": str(write_callers(folder / "callers.toml", callers)),
    }
    process = ServiceProcess(folder, env=env)
    try:
        yield process.start()
    finally:
        process.stop()
    with store_server.client() as client:
        assert access.denied(client, user=user) == []


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
