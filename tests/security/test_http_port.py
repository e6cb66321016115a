"""The HTTP port: the same credentials, rights and TLS as the gRPC port; metrics are for the operator."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from harness import ServiceProcess
from harness.scraping import Scraped
from headwayd.domain.namespaces import SEPARATOR
from security.authority import Authority
from security.callers import OTHERS, PLAIN, TEAM, Caller, write_callers

pytestmark = pytest.mark.any_store

Start = Callable[..., ServiceProcess]
HTTP = {"HEADWAY_HTTP_LISTEN": "127.0.0.1:0"}


def headers_of(caller: Caller | None) -> dict[str, str]:
    return {} if caller is None else dict(caller.metadata)


@pytest.fixture
def service(start: Start, short_dir: Path) -> ServiceProcess:
    known = [*TEAM.values(), *OTHERS.values(), *PLAIN.values()]
    return start(**HTTP, HEADWAY_AUTH_FILE=str(write_callers(short_dir / "callers.toml", known)))


async def test_calls_need_the_same_credentials_and_roles(service: ServiceProcess, name: str) -> None:
    url = f"{service.addresses[1]}/headway.v1.QueueService"
    async with httpx.AsyncClient(timeout=10) as client:

        async def answer(call: str, caller: Caller | None) -> tuple[int, str]:
            response = await client.post(f"{url}/{call}", json={"queue": name}, headers=headers_of(caller))
            return response.status_code, response.json().get("code", "")

        assert await answer("Create", None) == (401, "unauthenticated")
        assert await answer("Create", Caller(roles=("admin",))) == (401, "unauthenticated")
        assert await answer("Create", TEAM["producer"]) == (403, "permission_denied")
        assert await answer("Create", TEAM["admin"]) == (200, "")
        assert await answer("Describe", TEAM["watcher"]) == (200, "")
        assert await answer("Describe", OTHERS["admin"]) == (404, "not_found")


async def test_events_need_the_same_credentials_and_roles(service: ServiceProcess, name: str) -> None:
    url = service.addresses[1]
    async with httpx.AsyncClient(timeout=10) as client:
        create = f"{url}/headway.v1.QueueService/Create"
        assert (await client.post(create, json={"queue": name}, headers=headers_of(TEAM["admin"]))).is_success

        async def answer(caller: Caller | None) -> tuple[int, str]:
            told = await client.get(f"{url}/queues/{name}/events", params={"id": "one"}, headers=headers_of(caller))
            return told.status_code, "" if told.is_success else told.json()["reason"]

        assert await answer(None) == (401, "UNAUTHENTICATED")
        assert await answer(TEAM["consumer"]) == (403, "PERMISSION_DENIED")
        assert await answer(OTHERS["watcher"]) == (404, "QUEUE_NOT_FOUND")
        assert await answer(TEAM["watcher"]) == (200, "")


async def test_a_dashboard_is_not_asked_for_by_the_names_that_queues_have_inside(
    service: ServiceProcess, name: str
) -> None:
    url = service.addresses[1]
    async with httpx.AsyncClient(timeout=10) as client:
        create = f"{url}/headway.v1.QueueService/Create"
        assert (await client.post(create, json={"queue": name}, headers=headers_of(TEAM["admin"]))).is_success
        for field in ("prefix", "after", "queue"):
            asked = {field: f"team{SEPARATOR}{name}"}
            told = await client.get(f"{url}/dashboard/events", params=asked, headers=headers_of(PLAIN["admin"]))
            assert told.status_code == 400, told.text


async def test_metrics_are_for_the_operator_and_probes_for_everybody(service: ServiceProcess, name: str) -> None:
    url = service.addresses[1]
    async with httpx.AsyncClient(timeout=10) as client:
        create = f"{url}/headway.v1.QueueService/Create"
        assert (await client.post(create, json={"queue": name}, headers=headers_of(TEAM["admin"]))).is_success
        for caller in (None, Caller(roles=("admin",)), TEAM["admin"], PLAIN["watcher"]):
            assert (await client.get(f"{url}/metrics", headers=headers_of(caller))).status_code == 401
        told = await client.get(f"{url}/metrics", headers=headers_of(PLAIN["admin"]))
        assert told.status_code == 200
        assert f'queue_namespace="team",queue="{name}"' in told.text
        for probe in ("healthz", "readyz"):
            # No name leads astray a page that has no credentials to send.
            assert (await client.get(f"{url}/{probe}", headers={"host": "any.example"})).status_code == 200


async def test_queues_of_two_namespaces_never_share_series(service: ServiceProcess, name: str) -> None:
    """Not even if one is called as the other is in logs."""
    url = service.addresses[1]
    async with httpx.AsyncClient(timeout=10) as client:
        for caller, queue in ((TEAM["admin"], name), (PLAIN["admin"], f"team/{name}")):
            create = client.post(
                f"{url}/headway.v1.QueueService/Create", json={"queue": queue}, headers=headers_of(caller)
            )
            assert (await create).is_success
        told = await client.get(f"{url}/metrics", headers=headers_of(PLAIN["admin"]))
    waiting = Scraped(told.text, is_open=False)
    for namespace, queue in (("team", name), ("default", f"team/{name}")):
        assert waiting.has("queue_messages", queue_namespace=namespace, queue=queue, state="waiting")


async def test_it_serves_the_same_certificate_and_asks_for_the_same(start: Start, short_dir: Path) -> None:
    authority = Authority()
    files = {**authority.write_server(short_dir), "HEADWAY_TLS_CLIENT_CA": authority.write(short_dir)}
    url = start(**HTTP, **files).addresses[1]
    assert url.startswith("https://")
    context = ssl.create_default_context(cadata=authority.pem.decode())
    async with httpx.AsyncClient(timeout=10, verify=context) as client:
        with pytest.raises(httpx.TransportError):
            await client.get(f"{url}/healthz")
    authority.client("probe.example").configure_cert(context)
    async with httpx.AsyncClient(timeout=10, verify=context) as client:
        assert (await client.get(f"{url}/healthz")).status_code == 200


async def silent_at(url: httpx.URL, count: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connections that never shake hands."""
    return [await asyncio.open_connection(url.host, url.port) for _ in range(count)]


@pytest.mark.parametrize("plain", ["false", "true"])
async def test_who_never_shakes_hands_keeps_nobody_out(start: Start, short_dir: Path, plain: str) -> None:
    """As many as the port takes, as they are, all gone, and come again. The plain way has another event loop."""
    authority = Authority()
    bounds = {"HEADWAY_MAX_HTTP_CONNECTIONS": "10", "HEADWAY_HANDSHAKE_TIMEOUT": "2m", "HEADWAY_PLAIN": plain}
    url = httpx.URL(start(**HTTP, **bounds, **authority.write_server(short_dir)).addresses[1])
    context = ssl.create_default_context(cadata=authority.pem.decode())

    async def ask() -> int:
        async with httpx.AsyncClient(timeout=10, verify=context) as client:
            return (await client.get(url.join("/healthz"))).status_code

    first = await silent_at(url, 10)
    assert await ask() == 200
    assert await asyncio.wait_for(first[0][0].read(), 10) == b""  # the oldest made room
    assert not any(reader.at_eof() for reader, _ in first[1:])
    for _, writer in first:
        writer.close()
    for _ in range(3):
        again = await silent_at(url, 10)
        assert await ask() == 200
        for _, writer in again:
            writer.close()
        assert await ask() == 200


async def test_a_handshake_that_takes_too_long_is_ended(start: Start, short_dir: Path) -> None:
    authority = Authority()
    service = start(**HTTP, HEADWAY_HANDSHAKE_TIMEOUT="1s", **authority.write_server(short_dir))
    for reader, writer in await silent_at(httpx.URL(service.addresses[1]), 3):
        assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()


CERTIFICATES = """
[[certificates]]
subject = "admin.example"
grants = [{ roles = ["admin"] }]

[[certificates]]
subject = "watcher.team.example"
namespace = "team"
grants = [{ roles = ["watcher"] }]
"""


NO_PAGE: Mapping[str, str] = {}  # what a browser adds for one


class Shown:
    """Calls of clients that show a certificate, or of a page in their browser."""

    def __init__(self, url: str, authority: Authority) -> None:
        self._url = url
        self._authority = authority

    async def code(
        self, subject: str, call: str, queue: str, caller: Caller | None = None, *, page: Mapping[str, str] = NO_PAGE
    ) -> int:
        """The status of one call over a connection of its own."""
        async with self._client(subject) as client:
            said = {**headers_of(caller), **page}
            url = f"{self._url}/headway.v1.QueueService/{call}"
            return (await client.post(url, json={"queue": queue}, headers=said)).status_code

    async def metrics(self, subject: str) -> int:
        """Of the metrics."""
        async with self._client(subject) as client:
            return (await client.get(f"{self._url}/metrics")).status_code

    @asynccontextmanager
    async def dashboard(self, subject: str, queue: str) -> AsyncIterator[tuple[int, str]]:
        """A page of this client that looks on at the queues of this name: its status, and what it shows first."""
        url = f"{self._url}/dashboard/events?prefix={queue}"
        async with self._client(subject) as client, client.stream("GET", url) as response:
            shows, lines = "", response.aiter_lines()  # which would close the page if nobody held them
            async for line in lines:
                shows += line
                if '"names":' in line or response.is_error:
                    break
            yield response.status_code, shows

    def _client(self, subject: str) -> httpx.AsyncClient:
        context = ssl.create_default_context(cadata=self._authority.pem.decode())
        self._authority.client(subject).configure_cert(context)
        return httpx.AsyncClient(timeout=10, verify=context)


def service_that_asks(start: Start, short_dir: Path, *, origins: str) -> Shown:
    """One that asks for certificates, and is called by pages of these sites."""
    authority = Authority()
    file = write_callers(short_dir / "callers.toml", [TEAM["admin"]])
    file.write_text(file.read_text() + CERTIFICATES)
    files = {**authority.write_server(short_dir), "HEADWAY_TLS_CLIENT_CA": authority.write(short_dir)}
    settings = {**HTTP, **files, "HEADWAY_HTTP_ORIGINS": origins, "HEADWAY_AUTH_FILE": str(file)}
    return Shown(start(**settings).addresses[1], authority)


@pytest.fixture
def shown(start: Start, short_dir: Path) -> Shown:
    return service_that_asks(start, short_dir, origins="https://pages.example")


async def test_a_certificate_says_who_calls_and_a_token_goes_before_it(shown: Shown, name: str) -> None:
    assert await shown.code("admin.example", "Create", name) == 200
    assert await shown.code("nobody.example", "Describe", name) == 401
    assert await shown.code("watcher.team.example", "Describe", name) == 404  # of another namespace
    assert await shown.code("watcher.team.example", "Create", name) == 403
    assert await shown.code("watcher.team.example", "Create", name, TEAM["admin"]) == 200
    assert await shown.code("watcher.team.example", "Describe", name) == 200
    assert await shown.metrics("admin.example") == 200
    for subject in ("watcher.team.example", "nobody.example"):
        assert await shown.metrics(subject) == 401


async def test_a_page_of_somebody_else_does_not_call_by_the_certificate_of_its_reader(shown: Shown, name: str) -> None:
    assert await shown.code("admin.example", "Create", name) == 200
    for page in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}):
        assert await shown.code("admin.example", "Delete", name, page=page) == 403, page
    for page in (
        {"origin": "https://pages.example", "sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-origin"},
    ):
        assert await shown.code("admin.example", "Describe", name, page=page) == 200, page


async def test_where_any_page_may_call_none_does_by_the_certificate_of_its_reader(
    start: Start, short_dir: Path, name: str
) -> None:
    """It needs a token, which a page has only if somebody gave it one."""
    shown = service_that_asks(start, short_dir, origins="*")
    assert await shown.code("admin.example", "Create", name) == 200
    page = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    assert await shown.code("admin.example", "Delete", name, page=page) == 401
    assert await shown.code("admin.example", "Create", name, TEAM["admin"], page=page) == 200
    assert await shown.code("admin.example", "Delete", name) == 200


async def test_a_dashboard_shows_each_certificate_its_own_queues_only(shown: Shown, name: str) -> None:
    """Also while another one's page looks at the same."""
    assert await shown.code("admin.example", "Create", name) == 200
    async with (
        shown.dashboard("admin.example", name) as admins,
        shown.dashboard("watcher.team.example", name) as others,
        shown.dashboard("nobody.example", name) as nobodys,
    ):
        assert [status for status, _ in (admins, others, nobodys)] == [200, 200, 401]
        assert f'"names":["{name}"]' in admins[1]
        assert '"names":[]' in others[1]
