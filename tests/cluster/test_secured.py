"""Sentinels and a cluster behind TLS and passwords: the service shows a certificate, and reads passwords from files.

Redis only: the valkey-server of the service is built without TLS.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import trustme

from cluster.conftest import REPLICATED, Open, Serve
from cluster.test_sentinels import another_primary
from harness import eventually, refused
from harness.engines import SERVICE, ClusterOfSix, Fence, SentinelTrio
from harness.stores import program
from wire.calls import Line, payloads

PASSWORD, SENTINEL_PASSWORD = "of-the-servers", "of-the-sentinels"


@pytest.fixture
def fence(short_dir: Path) -> Fence:
    """Certificates of 127.0.0.1, and files of passwords."""
    program("redis")  # skips, or fails under CI
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(short_dir / "ca.pem")
    issued.private_key_pem.write_to_path(short_dir / "key.pem")
    issued.cert_chain_pems[0].write_to_path(short_dir / "cert.pem")
    (short_dir / "password").write_text(f"{PASSWORD}\n")
    (short_dir / "sentinel-password").write_text(f"{SENTINEL_PASSWORD}\n")
    return Fence(short_dir, PASSWORD, SENTINEL_PASSWORD)


@pytest.fixture
async def fenced_trio(fence: Fence) -> AsyncIterator[SentinelTrio]:
    """A primary, two replicas and three Sentinels that speak TLS with each other, too."""
    made = SentinelTrio("redis", fence.folder, options=REPLICATED, fence=fence)
    try:
        await asyncio.to_thread(made.start)
        yield made
    finally:
        await asyncio.to_thread(made.stop)


@pytest.fixture
async def fenced_cluster(fence: Fence) -> AsyncIterator[ClusterOfSix]:
    """Three primaries and three replicas that speak TLS with each other, too."""
    made = ClusterOfSix("redis", fence.folder, options=REPLICATED, fence=fence)
    try:
        await asyncio.to_thread(made.start)
        yield made
    finally:
        await asyncio.to_thread(made.stop)


async def _waits(line: Line) -> bool:
    return (await line.counts()).consumers_waiting == 1


async def _is_put(line: Line, payload: bytes) -> bool:
    """Within the time that a switch may take."""
    try:
        await line.put(payload)
    except Exception as error:
        raise AssertionError("not yet") from error
    return True


def passwords(fence: Fence) -> dict[str, str]:
    """The settings that name the files."""
    return {
        "HEADWAY_REDIS_PASSWORD_FILE": str(fence.folder / "password"),
        "HEADWAY_REDIS_SENTINEL_PASSWORD_FILE": str(fence.folder / "sentinel-password"),
    }


async def test_sentinels_are_asked_and_heard_over_tls_with_a_password_of_their_own(
    fenced_trio: SentinelTrio, fence: Fence, serve: Serve, open_line: Open
) -> None:
    """Who waits learns of a switch, so it is heard as well as asked for."""
    settings = passwords(fence) | {"HEADWAY_DURABILITY": "replicated"}
    one, other = [await open_line(await serve(fenced_trio.url, **settings), "jobs") for _ in range(2)]
    await one.create()
    await one.put(b"before")
    assert payloads(await other.take(1)) == [b"before"]
    waiting = asyncio.create_task(one.get(wait_ms=60_000))
    await eventually(partial(_waits, other))
    old = fenced_trio.primary
    with fenced_trio.sentinels[0].client() as client:
        client.execute_command("SENTINEL", "FAILOVER", SERVICE)
    await another_primary(fenced_trio, old)
    await eventually(partial(_is_put, other, b"after"), within=30)
    assert payloads((await waiting).deliveries) == [b"after"]


@pytest.mark.parametrize("wrong", ["password", "sentinel-password", "ca.pem"])
async def test_what_does_not_open_the_fence_is_told_as_a_store_that_is_not_there(
    fenced_trio: SentinelTrio, fence: Fence, serve: Serve, open_line: Open, wrong: str
) -> None:
    file = fence.folder / wrong
    right = file.read_bytes()
    if wrong == "ca.pem":
        file = fence.folder / "other.pem"
        trustme.CA().cert_pem.write_to_path(file)
        url = fenced_trio.url.replace("ca.pem", "other.pem")
    else:
        file.write_text("wrong\n")
        url = fenced_trio.url
    line = await open_line(await serve(url, **passwords(fence)), "jobs")
    with refused("STORE_UNAVAILABLE") as said:
        await line.create()
    assert said.metadata["cause"] == ("STORE" if "password" in wrong else "REFUSED")
    if "password" in wrong:  # read for each connection, so what is put right holds at once
        file.write_bytes(right)
        await eventually(partial(_is_made, line), within=20)


async def _is_made(line: Line) -> bool:
    try:
        await line.create()
    except Exception as error:
        raise AssertionError("not yet") from error
    return True


async def test_a_cluster_is_used_over_tls_with_a_password_of_a_file(
    fenced_cluster: ClusterOfSix, fence: Fence, serve: Serve, open_line: Open
) -> None:
    """On every node, through hints as well as calls, and after a switch."""
    file = {"HEADWAY_REDIS_PASSWORD_FILE": str(fence.folder / "password")}
    one, other = [await serve(fenced_cluster.url, **file) for _ in range(2)]
    for number in range(6):
        here, there = await open_line(one, f"q{number}"), await open_line(other, f"q{number}")
        await here.create()
        waiting = asyncio.create_task(here.get(wait_ms=60_000))
        await eventually(partial(_waits, there))
        await there.put(b"%d" % number)
        assert payloads((await waiting).deliveries) == [b"%d" % number]
    key = "__pressure__:{q0}"
    old = fenced_cluster.primary_of(key)
    replica = fenced_cluster.nodes[3 + fenced_cluster.nodes.index(old)]
    with replica.client() as client:
        client.execute_command("CLUSTER", "FAILOVER")
    await eventually(lambda: fenced_cluster.primary_of(key) is replica, within=30)
    await eventually(partial(_is_put, await open_line(one, "q0"), b"after"), within=30)
