"""The HTTP port: what it answers, what it refuses, and how it comes and goes with the service."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import grpc
import httpx
import pytest
import trustme

from harness import ServiceProcess, eventually
from harness.ipv6 import has_ipv6, without_ipv6
from harness.scraping import fetch
from headway.v1 import queue_service_pb2, queue_service_pb2_grpc
from headwayd.http import protocol
from headwayd.http.doors import Behind
from headwayd.http.server import HttpServer
from headwayd.sockets import CannotListen

MakeService = Callable[..., ServiceProcess]
Serve = Callable[..., Awaitable[int]]
HTTP = {"HEADWAY_HTTP_LISTEN": "127.0.0.1:0"}
STOP = timedelta(seconds=5)
STARTED: list[HttpServer] = []
LONG = b"x" * 3_000_000  # more than the kernel keeps for a reader who does not read


def http_server(*, is_ready: bool = True, most_connections: int = 100, read_s: float = 30, **how: Any) -> HttpServer:
    """Nothing but this port, in this process."""

    async def scrape(_accept: str) -> tuple[bytes, str]:
        return LONG, "text/plain"

    behind = Behind(scrape=scrape, is_ready=lambda: is_ready, most_connections=most_connections, read_s=read_s)
    at_first: dict[str, Any] = {
        "listen": "127.0.0.1:0",
        "handshake_s": 10,
        "keepalive": timedelta(seconds=20),
        "keepalive_timeout": timedelta(seconds=10),
    }
    return HttpServer(behind, **at_first | how)


@pytest.fixture
async def server() -> AsyncIterator[Serve]:
    """An HTTP server in this process, whose port it returns."""

    async def start(**how: Any) -> int:
        one = http_server(**how)
        STARTED.append(one)
        return int((await one.start()).rpartition(":")[2])

    yield start
    while STARTED:
        await STARTED.pop().stop(STOP)


def connections() -> int:
    """To the server in this process."""
    return len(STARTED[0]._server.server_state.connections)


async def test_what_is_not_there_is_404_and_another_method_is_405(make_service: MakeService) -> None:
    service = make_service(**HTTP)
    async with httpx.AsyncClient(base_url=service.http, timeout=10) as client:
        for path in ("/dash", "/metrics/", "/metrics/x", "/Metrics", "/healthz%00", "/%ff", "/../metrics/x"):
            assert (await client.get(path, follow_redirects=True)).status_code == 404, path
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "NONSENSE"):
            answer = await client.request(method, "/metrics", content=b"{}")
            assert answer.status_code == 405, method
            assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD"}
        with_body = await client.request("GET", "/healthz", content=b"x" * 100_000)
        assert (with_body.status_code, with_body.text) == (200, "alive\n")
        head = await client.head("/metrics")
        assert (head.status_code, head.content) == (200, b"")
        assert "server" not in head.headers


@pytest.mark.parametrize(
    "sent",
    [b"\r\n\r\n\r\n\r\nx", b"GET\r\n\r\n", b"\x16\x03\x01" * 10, b"GET /metrics HTTP/1.1\r\n\r\n"],
    ids=ascii,
)
async def test_what_is_no_request_is_400_and_the_connection_ends(sent: bytes, server: Serve) -> None:
    port = await server()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    async with asyncio.timeout(10):
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 400 ")
    writer.close()


async def test_a_head_that_is_too_large_is_refused(server: Serve) -> None:
    port = await server()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: a\r\nx: " + b"x" * 100_000)
    async with asyncio.timeout(10):
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    writer.close()


async def test_a_client_that_sends_its_request_too_slowly_loses_its_connection(
    server: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "REQUEST_S", 0.3)
    port = await server()
    for prelude in (b"", b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n"):  # at first, and after an answer
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(prelude)
        async with asyncio.timeout(10):
            while True:
                try:
                    writer.write(b"G" if not prelude else b"\r")
                    await writer.drain()
                    async with asyncio.timeout(0.05):
                        if not await reader.read(1_000):
                            break
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
        writer.close()


async def test_a_client_that_does_not_read_loses_its_connection(server: Serve) -> None:
    port = await server(read_s=0.3)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(slow, ("127.0.0.1", port))
        await loop.sock_sendall(slow, b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n" * 5)

        await eventually(lambda: connections() == 1)
        await eventually(lambda: connections() == 0, within=10)
    async with httpx.AsyncClient(timeout=10) as client:  # one that reads gets everything
        assert len((await client.get(f"http://127.0.0.1:{port}/metrics")).content) == len(LONG)


async def test_a_client_that_reads_slowly_gets_the_whole_answer(server: Serve) -> None:
    port = await server(read_s=0.5)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100_000)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(slow, ("127.0.0.1", port))
        head = b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
        await loop.sock_sendall(slow, head)
        begun, read = loop.time(), 0
        while chunk := await loop.sock_recv(slow, 100_000):
            read += len(chunk)
            await asyncio.sleep(0.05)
        assert loop.time() - begun > 1  # longer than it may leave the answer alone
        assert read > len(LONG)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel decides how long it waits")
@pytest.mark.parametrize(("silent_s", "answer_s", "idle_s", "sum_ms"), [(5, 2, 5, 7_000), (1.5, 0.1, 1, 1_600)])
async def test_a_connection_is_asked_and_given_up_as_the_settings_say(
    silent_s: float, answer_s: float, idle_s: int, sum_ms: int, server: Serve
) -> None:
    port = await server(keepalive=timedelta(seconds=silent_s), keepalive_timeout=timedelta(seconds=answer_s))
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    await eventually(lambda: connections() == 1)
    [connection] = STARTED[0]._server.server_state.connections
    theirs = connection.transport.get_extra_info("socket")
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_USER_TIMEOUT)
    assert theirs.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert [theirs.getsockopt(socket.IPPROTO_TCP, one) for one in options] == [idle_s, 1, sum_ms]
    writer.close()


async def test_connections_beyond_the_most_are_told_and_closed_and_those_within_are_served(
    server: Serve,
) -> None:
    port = await server(most_connections=3)
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(10):
        told = await reader.read()
    assert told.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"retry-after: 1\r\n" in told
    writer.close()
    for reader, writer in held:
        writer.write(b"GET /readyz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        async with asyncio.timeout(10):
            assert (await reader.read()).endswith(b"ready\n")
        writer.close()


async def ask(port: int, request: bytes, rest: bytes = b"") -> bytes:
    """Everything that comes back, over a connection of its own, until it is closed. The rest is sent later."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    if rest:
        await asyncio.sleep(0.05)
        writer.write(rest)
    async with asyncio.timeout(10):
        told = await reader.read()
    writer.close()
    return told


async def test_beyond_the_most_connections_health_is_still_told_and_nothing_else(server: Serve) -> None:
    port = await server(most_connections=3)
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    for path in (b"/healthz", b"/readyz"):
        once = b"GET " + path + b" HTTP/1.1\r\nhost: a\r\n\r\n"
        told = await ask(port, once + b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n")
        assert told.startswith(b"HTTP/1.1 200 OK\r\n")
        assert told.count(b"HTTP/1.1") == 1  # what follows on that connection is not answered
    assert (await ask(port, b"GET /readyz HTTP/1.1\r\n", b"host: a\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
    for path in (b"/metrics", b"/healthz/x", b"/queues/a"):
        told = await ask(port, b"GET " + path + b" HTTP/1.1\r\nhost: a\r\n\r\n")
        assert told.startswith(b"HTTP/1.1 503 Service Unavailable\r\n"), path
    await eventually(lambda: connections() == 3)
    for _, writer in held:
        writer.close()


async def test_spare_connections_are_few_and_not_for_long(server: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "SPARE_S", 2.0)
    port = await server(most_connections=1)
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(1 + protocol.SPARE)]
    await eventually(lambda: connections() == 1 + protocol.SPARE)
    assert b" 503 " in (await ask(port, b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")).partition(b"\r\n")[0]
    await eventually(lambda: connections() == 1)
    for reader, _ in held[1:]:
        async with asyncio.timeout(10):
            assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
    assert b" 200 " in (await ask(port, b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")).partition(b"\r\n")[0]
    for _, writer in held:
        writer.close()


async def test_from_the_signal_on_it_is_not_ready_and_it_answers_until_calls_have_ended(
    make_service: MakeService, connect: Callable[[str], grpc.aio.Channel]
) -> None:
    service = make_service(HEADWAY_DRAIN_DELAY="60s", **HTTP)
    assert (await fetch(service, "/readyz")).text == "ready\n"
    service.signal(signal.SIGTERM)

    async def is_not_ready() -> bool:
        answer = await fetch(service, "/readyz")
        return (answer.status_code, answer.text) == (503, "not ready\n")

    await eventually(is_not_ready)
    assert (await fetch(service, "/healthz")).status_code == 200
    assert "headway_ready 0.0" in (await fetch(service, "/metrics")).text
    async with connect(service.address) as channel:  # calls are still served
        stub = queue_service_pb2_grpc.QueueServiceStub(channel)
        await stub.Create(queue_service_pb2.CreateRequest(queue="jobs"), timeout=10)
    service.signal(signal.SIGINT)
    assert service.wait() == 0
    with pytest.raises(httpx.ConnectError):
        await fetch(service, "/healthz")


async def test_a_client_that_stays_connected_does_not_hold_up_the_end(make_service: MakeService) -> None:
    service = make_service(**HTTP)
    port = int(service.http.rpartition(":")[2])
    silent = await asyncio.open_connection("127.0.0.1", port)
    async with httpx.AsyncClient(timeout=10) as client:
        await client.get(f"{service.http}/healthz")
        assert service.stop() == 0
    silent[1].close()


def test_an_address_that_is_taken_ends_the_start_with_1_and_a_line(make_service: MakeService) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flags in ((), ("--workers", "2")):
            service = make_service(HEADWAY_HTTP_LISTEN=address, start=False, flags=flags)
            service.launch()
            assert service.wait() == 1
            assert f"headwayd: cannot listen on {address}" in service.log.read_text()


async def test_with_a_certificate_it_speaks_https_only() -> None:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    server = http_server(tls=context)
    url = await server.start()
    async with httpx.AsyncClient(timeout=10, verify=trusting) as client:
        assert (await client.get(f"{url}/readyz")).text == "ready\n"
        with pytest.raises(httpx.TransportError):
            await client.get(f"{url.replace('https', 'http')}/readyz")
    await server.stop(STOP)


@pytest.mark.parametrize("refusal", [None, errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
async def test_the_address_of_all_is_of_both_families_where_there_are_both(
    refusal: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if refusal is None and not has_ipv6():
        pytest.skip("this machine has no IPv6")

    both = http_server(listen="[::]:0")
    with monkeypatch.context() as patched:
        if refusal is not None:
            patched.setattr(socket, "socket", without_ipv6(refusal))
        port = (await both.start()).rpartition(":")[2]
    async with httpx.AsyncClient(timeout=10) as client:
        for host in ["127.0.0.1", "[::1]"] if refusal is None else ["127.0.0.1"]:
            assert (await client.get(f"http://{host}:{port}/readyz")).text == "ready\n", host
    for taken in ("[::]", "0.0.0.0"):
        with pytest.raises(CannotListen):
            await http_server(listen=f"{taken}:{port}").start()
    await both.stop(STOP)


async def test_a_name_listens_on_all_its_addresses_and_a_wrong_one_is_told() -> None:
    local = http_server(is_ready=False, listen="localhost:0")
    url = await local.start()
    async with httpx.AsyncClient(timeout=10) as client:
        assert (await client.get(f"{url}/readyz")).status_code == 503
    with pytest.raises(CannotListen):
        await http_server(listen=url.removeprefix("http://")).start()
    await local.stop(STOP)
    with pytest.raises(CannotListen):
        await http_server(listen="192.0.2.1:0").start()
