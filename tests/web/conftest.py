"""A service with its HTTP port, and callers of it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import httpx
import pytest

from harness import ServiceProcess, StoreServer
from headway.v1.queue_service_pb2_grpc import QueueServiceStub
from web.callers import Caller
from wire.calls import SLACK_S, Line

ORIGIN = "https://jobs.example"


@contextmanager
def http_service(store: StoreServer, folder: Path, **env: str) -> Iterator[ServiceProcess]:
    """A service that takes calls by HTTP, too, with keys of its own."""
    folder.mkdir()
    with_http = {
        "HEADWAY_REDIS_URL": store.url,
        "PRESSURE_PREFIX": f"w{uuid.uuid4().hex[:8]}",
        "HEADWAY_HTTP_LISTEN": "127.0.0.1:0",
    }
    process = ServiceProcess(folder, env=with_http | env)
    try:
        yield process.start()
    finally:
        process.stop()


@pytest.fixture(scope="module")
def web_service(store_server: StoreServer, session_dir: Path) -> Iterator[ServiceProcess]:
    """A service that takes calls by HTTP, too."""
    folder = session_dir / f"web-{store_server.kind}-{uuid.uuid4().hex[:6]}"
    known = {"HEADWAY_HTTP_ORIGINS": ORIGIN, "HEADWAY_HTTP_HOSTS": "jobs.internal"}
    with http_service(store_server, folder, **known) as process:
        yield process


def base_url(service: ServiceProcess) -> str:
    """Of its HTTP port."""
    (url,) = [address for address in service.addresses if address.startswith("http://")]
    return url


@pytest.fixture
async def http(web_service: ServiceProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=base_url(web_service), timeout=SLACK_S) as client:
        yield client


@pytest.fixture(params=["json", "proto", "grpc-web"])
def caller(http: httpx.AsyncClient, request: pytest.FixtureRequest) -> Caller:
    return Caller(http, request.param)


@pytest.fixture
async def line(web_service: ServiceProcess) -> AsyncIterator[Line]:
    """A queue of the same service, by gRPC."""
    async with grpc.aio.insecure_channel(web_service.address) as channel:
        made = Line(QueueServiceStub(channel), f"web-{uuid.uuid4().hex[:8]}")
        await made.create()
        yield made
