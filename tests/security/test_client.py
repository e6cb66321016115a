"""The Python client and its command line, with TLS and tokens."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

import headway
from harness import ServiceProcess
from headway.v1.queue_pb2 import Policy
from security.authority import Authority
from security.callers import TEAM, write_callers

pytestmark = pytest.mark.any_store

AUTHORITY = Authority()


@pytest.fixture
def service(start: Callable[..., ServiceProcess], short_dir: Path) -> ServiceProcess:
    """With TLS and callers."""
    callers = write_callers(short_dir / "callers.toml", TEAM.values())
    AUTHORITY.write(short_dir)
    return start(**AUTHORITY.write_server(short_dir), HEADWAY_AUTH_FILE=str(callers))


async def test_a_client_brings_its_token_over_tls_in_calls_and_streams(service: ServiceProcess, name: str) -> None:
    admin = TEAM["admin"].token
    async with headway.connect(service.address, root_certificates=AUTHORITY.pem, token=admin) as client:
        queue = client.queue(name)
        await queue.create(Policy())
        async with queue.producer() as producer:
            await producer.put(b"one")
        async for job in queue.work():
            assert job.payload == b"one"
            break


async def test_a_token_may_be_given_anew_for_each_call(service: ServiceProcess, name: str) -> None:
    tokens = [TEAM["admin"].token, TEAM["watcher"].token, "unknown"]
    async with headway.connect(service.address, root_certificates=AUTHORITY.pem, token=lambda: tokens.pop(0)) as client:
        await client.queue(name).create(Policy())
        await client.queue(name).describe()
        with pytest.raises(headway.Unauthenticated):
            await client.queue(name).describe()


async def test_a_role_that_lacks_is_an_error_of_its_own(service: ServiceProcess, name: str) -> None:
    watcher = TEAM["watcher"].token
    async with headway.connect(service.address, root_certificates=AUTHORITY.pem, token=watcher) as client:
        with pytest.raises(headway.PermissionDenied):
            await client.queue(name).create(Policy())


def test_two_ways_to_say_tls_are_one_too_many() -> None:

    with pytest.raises(ValueError, match="not both"):
        headway.connect(credentials=grpc.ssl_channel_credentials(), root_certificates=b"")


def run(service: ServiceProcess, *arguments: str | Path, **env: str) -> subprocess.CompletedProcess[bytes]:
    program = Path(sys.executable).with_name("headway")
    command: list[str | Path] = [sys.executable, program, "--address", service.address, *arguments]
    return subprocess.run(command, env=service.env | env, check=False, timeout=60, capture_output=True)


def test_the_command_line_takes_files_and_variables(service: ServiceProcess, short_dir: Path, name: str) -> None:
    token = short_dir / "token"
    token.write_text(TEAM["admin"].token + "\n")
    ca = short_dir / "ca.pem"
    done = run(service, "--ca", ca, "--token-file", token, "create", name)
    assert done.returncode == 0, done.stderr
    done = run(service, "describe", name, HEADWAY_CA=str(ca), HEADWAY_TOKEN=TEAM["watcher"].token + "\n")
    assert done.returncode == 0, done.stderr
    done = run(service, "describe", name, HEADWAY_CA=str(ca))
    assert done.returncode != 0
    assert b"credentials" in done.stderr
    done = run(service, "--cert", ca, "describe", name)
    assert b"--cert and --key" in done.stderr
    done = run(service, "--token-file", short_dir / "missing", "describe", name)
    assert b"missing" in done.stderr
