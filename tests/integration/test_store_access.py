"""How the service comes to its store: over TLS, by a password from a file, as a user who may do little else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
import redis
import trustme

from harness import ServiceProcess, StoreServer, eventually, refused
from harness.access import allow, denied, url_of
from harness.stores import free_port
from wire.calls import line_at, payloads

MakeService = Callable[..., ServiceProcess]
Connect = Callable[[str], grpc.aio.Channel]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Who signs the store's certificate."""
    return trustme.CA()


@pytest.fixture
def tls_port(short_dir: Path, authority: trustme.CA) -> Iterator[int]:
    """Of a Redis that also speaks TLS, as 127.0.0.1: the valkey-server of the service is built without."""
    certificate = authority.issue_cert("127.0.0.1")
    chain, key, root = short_dir / "chain.pem", short_dir / "key.pem", short_dir / "root.pem"
    chain.write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    certificate.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(root)
    port = free_port()
    options: tuple[str, ...] = ("--tls-port", str(port), "--tls-cert-file", str(chain), "--tls-key-file", str(key))
    options += ("--tls-ca-cert-file", str(root), "--tls-auth-clients", "no")
    store = StoreServer("redis", short_dir, options=options)
    store.start()
    yield port
    store.stop()


async def test_a_store_is_used_over_tls(
    tls_port: int, short_dir: Path, make_service: MakeService, connect: Connect
) -> None:
    url = f"rediss://127.0.0.1:{tls_port}/0?ssl_ca_certs={short_dir / 'root.pem'}"
    service = make_service(HEADWAY_REDIS_URL=url)
    async with line_at(service.address, "jobs", connect) as line:
        await line.create()
        await line.put(b"over TLS")
        assert payloads((await line.get(wait_ms=5_000)).deliveries) == [b"over TLS"]


@pytest.mark.parametrize(
    "url",
    [("localhost", "root.pem"), ("127.0.0.1", "other.pem")],
    ids=["another name", "another authority"],
)
async def test_a_store_whose_certificate_does_not_hold_is_not_used(
    tls_port: int, short_dir: Path, make_service: MakeService, connect: Connect, url: tuple[str, str]
) -> None:
    host, signs = url
    trustme.CA().cert_pem.write_to_path(short_dir / "other.pem")
    service = make_service(HEADWAY_REDIS_URL=f"rediss://{host}:{tls_port}/0?ssl_ca_certs={short_dir / signs}")
    async with line_at(service.address, "jobs", connect) as line:
        with refused("STORE_UNAVAILABLE"):
            await line.create()


async def test_a_password_is_read_from_its_file_for_each_connection(
    fresh_store_server: StoreServer, short_dir: Path, make_service: MakeService, connect: Connect
) -> None:
    file = short_dir / "password"
    file.write_text("first\n")
    with fresh_store_server.client() as client:
        client.config_set("requirepass", "first")
    service = make_service(HEADWAY_REDIS_URL=fresh_store_server.url, HEADWAY_REDIS_PASSWORD_FILE=str(file))
    with redis.Redis(port=fresh_store_server.port, password="first", protocol=2) as client:
        async with line_at(service.address, "jobs", connect) as line:
            await line.create()
            client.config_set("requirepass", "second")
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            with refused("STORE_UNAVAILABLE") as said:
                await line.put(b"no")
            assert said.metadata["cause"] == "STORE"
            file.write_text("second\n")

            async def is_in() -> bool:
                try:
                    await line.put(b"yes")
                except grpc.aio.AioRpcError:
                    return False
                return True

            await eventually(is_in)


@pytest.mark.parametrize(
    ("case", "told"),
    [
        (("right", ":wrong@"), "the store does not accept the password, or does not know the user"),
        (("right", "default:wrong@"), "the store does not accept the password, or does not know the user"),
        (("right", "nobody:right@"), "the store does not accept the password, or does not know the user"),
        (("right", ""), "the store wants a password"),
        (("", ":needless@"), "the store has no password, and was given one"),
    ],
)
async def test_what_the_store_says_of_a_password_is_told_as_it_is(
    fresh_store_server: StoreServer, make_service: MakeService, connect: Connect, case: tuple[str, str], told: str
) -> None:
    wanted, user = case
    with fresh_store_server.client() as client:
        client.config_set("requirepass", wanted)
    host = fresh_store_server.url.rpartition("@")[2].removeprefix("redis://")
    service = make_service(HEADWAY_REDIS_URL=f"redis://{user}{host}")
    async with line_at(service.address, "jobs", connect) as line:
        with refused("STORE_UNAVAILABLE") as said:
            await line.create()
    assert (said.message, said.metadata["cause"]) == (told, "STORE")
    await eventually(lambda: "not ready" in service.log.read_text())
    [line_of_log] = [each for each in service.log.read_text().splitlines() if "not ready" in each]
    assert f"cause=STORE error='{told}'" in line_of_log
    with redis.Redis(port=fresh_store_server.port, password=wanted or None, protocol=2) as client:
        client.config_set("requirepass", "")


async def test_a_password_that_cannot_be_read_is_told_as_it_is(
    fresh_store_server: StoreServer, short_dir: Path, make_service: MakeService
) -> None:
    file = short_dir / "password"
    file.write_text("right")
    with fresh_store_server.client() as client:
        client.config_set("requirepass", "right")
        service = make_service(HEADWAY_REDIS_URL=fresh_store_server.url, HEADWAY_REDIS_PASSWORD_FILE=str(file))
        file.unlink()
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        # Not of the first "not ready": a question that was under way is told as a broken connection.
        await eventually(lambda: "the file with the store's password cannot be read" in service.log.read_text())
        client.config_set("requirepass", "")


async def test_the_user_of_the_documents_may_do_all_that_is_needed_and_nothing_else(
    fresh_store_server: StoreServer, make_service: MakeService, connect: Connect
) -> None:
    with fresh_store_server.client() as client:
        allow(client)
    url = url_of(fresh_store_server)
    service = make_service(HEADWAY_REDIS_URL=url)
    async with line_at(service.address, "jobs", connect) as line:
        await line.create()
        await line.put(b"one")
        assert payloads((await line.get(wait_ms=5_000)).deliveries) == [b"one"]
    with fresh_store_server.client() as client:
        assert denied(client) == []
        for command in ("FLUSHALL", "KEYS *", "CONFIG SET appendonly no", "SHUTDOWN", "GET elsewhere", "ACL WHOAMI"):
            told = client.execute_command("ACL", "DRYRUN", "headway", *command.split())
            assert told != b"OK", command


async def test_without_config_everysec_is_assumed_and_always_refused(
    fresh_store_server: StoreServer, make_service: MakeService
) -> None:
    with fresh_store_server.client() as client:
        allow(client)
        client.execute_command("ACL", "SETUSER", "headway", "-config|get")
    url = url_of(fresh_store_server)
    service = make_service(HEADWAY_REDIS_URL=url)
    assert ", everysec, " in service.store
    assert "everysec is assumed" in service.log.read_text()
    refusing = make_service(HEADWAY_REDIS_URL=url, HEADWAY_DURABILITY="always", start=False)
    refusing.launch()
    assert refusing.wait() == 1
    assert "CONFIG GET appendfsync is not allowed" in refusing.log.read_text()
