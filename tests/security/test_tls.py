"""TLS of the gRPC port and of ports of Python's own: who gets a connection, certificates that follow their files."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import socket
import ssl
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from harness import ServiceProcess, StoreServer, eventually
from headway.v1 import queue_service_pb2, queue_service_pb2_grpc
from headwayd.access.tls import TlsFiles
from headwayd.access.watched import AccessFailed
from security.authority import Authority, trusting
from security.callers import Caller, write_callers

pytestmark = pytest.mark.any_store

UNAVAILABLE, UNAUTHENTICATED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED
MakeService = Callable[..., ServiceProcess]
CONNECTIONS = 12  # so many come to most of what accepts connections, among which they are spread
COMMENT = "# Zürich\n".encode() + "# Zürich\n".encode("latin-1")
CERTIFICATE = """
[[certificates]]
subject = "{role}.team.example"
namespace = "team"
grants = [{{ roles = ["{role}"] }}]
"""


async def code_of(
    address: str, credentials: grpc.ChannelCredentials | None, caller: Caller | None = None
) -> grpc.StatusCode:
    """How a call on a new connection ends."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    if credentials is None:
        channel = grpc.aio.insecure_channel(address, options=options)
    else:
        channel = grpc.aio.secure_channel(address, credentials, options=options)
    async with channel:
        stub: queue_service_pb2_grpc.QueueServiceAsyncStub = queue_service_pb2_grpc.QueueServiceStub(channel)
        try:
            await stub.List(
                queue_service_pb2.ListRequest(), timeout=5, metadata=caller.metadata if caller is not None else None
            )
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


@pytest.fixture
def settings(store_server: StoreServer) -> dict[str, str]:
    return {"HEADWAY_REDIS_URL": store_server.url}


async def test_only_tls_is_served_and_only_for_those_who_trust(
    make_service: MakeService, settings: dict[str, str], short_dir: Path
) -> None:
    authority = Authority()
    service = make_service(**settings, **authority.write_server(short_dir))
    assert await code_of(service.address, trusting(authority)) is grpc.StatusCode.OK
    assert await code_of(service.address, None) is UNAVAILABLE
    assert await code_of(service.address, trusting(Authority())) is UNAVAILABLE


async def test_every_address_serves_tls(make_service: MakeService, settings: dict[str, str], short_dir: Path) -> None:
    authority = Authority()
    service = make_service(**settings, **authority.write_server(short_dir), HEADWAY_LISTEN="127.0.0.1:0,localhost:0")
    assert len(service.addresses) == 2
    for address in service.addresses * CONNECTIONS:
        assert await code_of(address, trusting(authority)) is grpc.StatusCode.OK
        assert await code_of(address, None) is UNAVAILABLE


async def test_a_socket_of_this_machine_is_plain(
    make_service: MakeService, settings: dict[str, str], short_dir: Path
) -> None:
    listen = f"unix:{short_dir}/s"
    service = make_service(**settings, **Authority().write_server(short_dir), HEADWAY_LISTEN=listen)
    assert await code_of(service.address, None) is grpc.StatusCode.OK


def handshake(address: str, context: ssl.SSLContext) -> str | None:
    """Which version of TLS it comes to."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5) as plain:
        plain.settimeout(5)
        with context.wrap_socket(plain, server_hostname=host) as secure:
            return secure.version()


def client_context(authority: Authority, version: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.pem.decode())
    context.set_alpn_protocols(["h2"])
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    return context


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_tls_older_than_1_2_is_refused(make_service: MakeService, settings: dict[str, str], short_dir: Path) -> None:
    authority = Authority()
    service = make_service(**settings, **authority.write_server(short_dir))
    assert handshake(service.address, client_context(authority, ssl.TLSVersion.TLSv1_2)) == "TLSv1.2"
    assert handshake(service.address, client_context(authority, ssl.TLSVersion.TLSv1_3)) == "TLSv1.3"
    with pytest.raises(ssl.SSLError):
        handshake(service.address, client_context(authority, ssl.TLSVersion.TLSv1_1))
    assert "UNSUPPORTED_PROTOCOL" in service.log.read_text()  # gRPC says why, and hangs up


async def test_new_connections_get_a_new_certificate_and_those_that_stand_go_on(
    make_service: MakeService, settings: dict[str, str], short_dir: Path
) -> None:
    old, new = Authority(), Authority()
    service = make_service(**settings, **old.write_server(short_dir))
    async with grpc.aio.secure_channel(service.address, trusting(old)) as channel:
        stub: queue_service_pb2_grpc.QueueServiceAsyncStub = queue_service_pb2_grpc.QueueServiceStub(channel)
        await stub.List(queue_service_pb2.ListRequest(), timeout=5)
        new.write_server(short_dir)

        async def follows() -> bool:
            return await code_of(service.address, trusting(new)) is grpc.StatusCode.OK

        await eventually(follows, within=15)
        for _ in range(CONNECTIONS):
            assert await code_of(service.address, trusting(old)) is UNAVAILABLE
            assert await code_of(service.address, trusting(new)) is grpc.StatusCode.OK
        await stub.List(queue_service_pb2.ListRequest(), timeout=5)


@pytest.mark.parametrize("broken", ["text", "of another key", "gone"])
async def test_a_certificate_that_cannot_be_used_is_logged_and_the_old_one_stays(
    make_service: MakeService, settings: dict[str, str], short_dir: Path, broken: str
) -> None:
    authority = Authority()
    service = make_service(**settings, **authority.write_server(short_dir))
    if broken == "text":
        (short_dir / "cert.pem").write_text("not a certificate")
    elif broken == "gone":
        (short_dir / "cert.pem").unlink()
    else:
        authority.write_server(short_dir, key=False)
    await eventually(lambda: "a changed file cannot be used" in service.log.read_text(), within=15)
    assert await code_of(service.address, trusting(authority)) is grpc.StatusCode.OK


@pytest.mark.parametrize("broken", ["text", "of another key", "gone"])
def test_at_the_start_it_ends_the_service_with_a_line_that_names_it(
    make_service: MakeService, settings: dict[str, str], short_dir: Path, broken: str
) -> None:
    authority = Authority()
    named = authority.write_server(short_dir)
    if broken == "text":
        (short_dir / "cert.pem").write_text("not a certificate")
    elif broken == "gone":
        (short_dir / "cert.pem").unlink()
    else:
        authority.write_server(short_dir, key=False)
    service = make_service(**settings, **named, start=False)
    service.launch()
    assert service.wait() == 1
    line = service.log.read_text().splitlines()[-1]
    assert line.startswith("headwayd: ")
    assert "cert.pem" in line


# -- clients' certificates --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("comment", [b"", COMMENT], ids=["plain", "with comments"])
async def test_without_a_certificate_of_the_authority_there_is_no_connection(
    make_service: MakeService, settings: dict[str, str], short_dir: Path, comment: bytes
) -> None:
    authority = Authority()
    file = authority.write(short_dir, comment=comment)
    service = make_service(**settings, **authority.write_server(short_dir), HEADWAY_TLS_CLIENT_CA=file)
    sound = authority.client("worker.team.example")
    assert await code_of(service.address, trusting(authority, sound)) is grpc.StatusCode.OK
    assert await code_of(service.address, trusting(authority)) is UNAVAILABLE
    assert await code_of(service.address, trusting(authority, Authority().client("worker.example"))) is UNAVAILABLE
    expired = authority.client("worker.team.example", lives=timedelta(days=-1))
    assert await code_of(service.address, trusting(authority, expired)) is UNAVAILABLE


@pytest.mark.parametrize(
    ("names", "common_name", "code"),
    [
        (["watcher.team.example"], None, grpc.StatusCode.OK),
        (["other.example", "watcher.team.example"], None, grpc.StatusCode.OK),
        (["other.example"], None, UNAUTHENTICATED),
        (["producer.team.example"], None, grpc.StatusCode.PERMISSION_DENIED),
        # The common name counts only where there is no other.
        (["other.example"], "watcher.team.example", UNAUTHENTICATED),
        ([], "watcher.team.example", grpc.StatusCode.OK),
    ],
)
async def test_a_certificate_says_who_calls(  # noqa: PLR0917 - fixtures and cases
    make_service: MakeService,
    settings: dict[str, str],
    short_dir: Path,
    names: list[str],
    common_name: str | None,
    code: grpc.StatusCode,
) -> None:
    authority = Authority()
    callers = short_dir / "callers.toml"
    callers.write_text("".join(CERTIFICATE.format(role=role) for role in ("producer", "watcher")))
    service = make_service(
        **settings,
        **authority.write_server(short_dir),
        HEADWAY_TLS_CLIENT_CA=authority.write(short_dir),
        HEADWAY_AUTH_FILE=str(callers),
    )
    client = authority.client(*names, common_name=common_name)
    assert await code_of(service.address, trusting(authority, client)) is code


async def test_a_token_goes_before_a_certificate(
    make_service: MakeService, settings: dict[str, str], short_dir: Path
) -> None:
    authority = Authority()
    caller = Caller(roles=("producer",))
    callers = write_callers(short_dir / "callers.toml", [caller])
    callers.write_text(
        callers.read_text() + '\n[[certificates]]\nsubject = "a.example"\ngrants = [{ roles = ["watcher"] }]\n'
    )
    service = make_service(
        **settings,
        **authority.write_server(short_dir),
        HEADWAY_TLS_CLIENT_CA=authority.write(short_dir),
        HEADWAY_AUTH_FILE=str(callers),
    )
    shown = trusting(authority, authority.client("a.example"))
    assert await code_of(service.address, shown) is grpc.StatusCode.OK
    assert await code_of(service.address, shown, caller) is grpc.StatusCode.PERMISSION_DENIED


# -- a port of Python's own -------------------------------------------------------------------------------------------


async def python_port(files: TlsFiles) -> asyncio.Server:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    return await asyncio.start_server(greet, "127.0.0.1", 0, ssl=files.context())


async def greeting(server: asyncio.Server, authority: Authority, client: trustme.LeafCert | None = None) -> bytes:
    context = ssl.create_default_context(cadata=authority.pem.decode())
    if client is not None:
        client.configure_cert(context)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        return await asyncio.wait_for(reader.read(), 5)
    finally:
        writer.close()


async def test_a_port_of_pythons_own_follows_the_files_too(short_dir: Path) -> None:
    old, new = Authority(), Authority()
    old.write_server(short_dir)
    files = TlsFiles(cert=short_dir / "cert.pem", key=short_dir / "key.pem")
    server = await python_port(files)
    async with server:
        assert await greeting(server, old) == b"hello"
        new.write_server(short_dir)
        files.refresh()
        assert await greeting(server, new) == b"hello"
        with pytest.raises(ssl.SSLCertVerificationError):
            await greeting(server, old)
        (short_dir / "cert.pem").write_text("broken")
        files.refresh()
        assert await greeting(server, new) == b"hello"


@pytest.mark.parametrize("failing", [1, 2], ids="at try {}".format)
async def test_a_certificate_that_cannot_be_read_for_want_of_descriptors_is_read_later(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    old, new = Authority(), Authority()
    old.write_server(short_dir)
    files = TlsFiles(cert=short_dir / "cert.pem", key=short_dir / "key.pem")
    server = await python_port(files)
    true, tries = ssl.SSLContext.load_cert_chain, itertools.count(1)

    def load(context: ssl.SSLContext, *args: Any, **options: Any) -> None:
        if next(tries) == failing:
            raise OSError(errno.EMFILE, "Too many open files")
        true(context, *args, **options)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", load)
    async with server:
        new.write_server(short_dir)
        for _ in range(2):
            files.refresh()
        assert await greeting(server, new) == b"hello"


async def test_an_authority_with_comments_in_any_language_is_followed_too(short_dir: Path) -> None:
    authority, new = Authority(), Authority()
    authority.write_server(short_dir)
    file = Path(authority.write(short_dir))
    files = TlsFiles(cert=short_dir / "cert.pem", key=short_dir / "key.pem", client_ca=file)
    server = await python_port(files)
    async with server:
        new.write(short_dir, comment=COMMENT)
        files.refresh()
        assert await greeting(server, authority, new.client("a.example")) == b"hello"


async def test_a_port_of_pythons_own_asks_for_certificates_too(short_dir: Path) -> None:
    authority = Authority()
    authority.write_server(short_dir)
    files = TlsFiles(cert=short_dir / "cert.pem", key=short_dir / "key.pem", client_ca=Path(authority.write(short_dir)))
    server = await python_port(files)
    async with server:
        assert await greeting(server, authority, authority.client("a.example")) == b"hello"
        greeted = b""
        with contextlib.suppress(OSError):  # with TLS 1.3 the client learns of it when it reads
            greeted = await greeting(server, authority)
        assert greeted == b""


async def test_a_port_of_pythons_own_forgets_an_authority_that_was_taken_back(short_dir: Path) -> None:
    """Also where a session of before would save its client from showing the certificate again."""
    server_authority, old, new = Authority(), Authority(), Authority()
    server_authority.write_server(short_dir)
    file = Path(old.write(short_dir))
    files = TlsFiles(cert=short_dir / "cert.pem", key=short_dir / "key.pem", client_ca=file)
    server = await python_port(files)
    shown = ssl.create_default_context(cadata=server_authority.pem.decode())
    shown.maximum_version = ssl.TLSVersion.TLSv1_2  # there a session is there with the handshake
    old.client("a.example").configure_cert(shown)
    port = server.sockets[0].getsockname()[1]

    def greeted(session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession | None, bool]:
        plain = socket.create_connection(("127.0.0.1", port), timeout=5)
        with plain, shown.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as tls:
            return tls.recv(5), tls.session, bool(tls.session_reused)

    async with server:
        _, session, _ = await asyncio.to_thread(greeted, None)
        assert (await asyncio.to_thread(greeted, session))[2]
        new.write(short_dir)
        files.refresh()
        for kept in (session, None):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.to_thread(greeted, kept)
        assert await greeting(server, server_authority, new.client("a.example")) == b"hello"


def test_a_key_with_a_password_is_refused_without_asking_for_it(short_dir: Path) -> None:
    authority = Authority()
    authority.write_server(short_dir)
    key = short_dir / "key.pem"

    private = serialization.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(AccessFailed, match="needs a password"):
        TlsFiles(cert=short_dir / "cert.pem", key=key)
