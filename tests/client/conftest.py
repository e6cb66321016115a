"""Fixtures of the client's tests: the in-memory service, a client connected to it, and the command line."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

import headway
from client.fake_service import FakeQueue, FakeService, serving
from headway.v1.queue_pb2 import Policy

DEADLINE_SECONDS = 30


@pytest_asyncio.fixture
async def service() -> AsyncIterator[FakeService]:
    async with serving(FakeService()) as served:
        yield served


@pytest_asyncio.fixture
async def client(service: FakeService) -> AsyncIterator[headway.Client]:
    async with headway.connect(service.address) as connected:
        yield connected


@pytest.fixture
def made(service: FakeService) -> FakeQueue:
    """The service's side of a queue "q" that exists."""
    service.queues["q"] = FakeQueue("q", Policy())
    return service.queues["q"]


@pytest.fixture
def queue(client: headway.Client, made: FakeQueue) -> headway.Queue:
    return client.queue("q")


@dataclass(frozen=True)
class Finished:
    """What a run of the command line left."""

    code: int
    out: bytes
    err: str


@dataclass(frozen=True)
class CommandLine:
    """Runs `headway` against the in-memory service."""

    address: str

    async def start(self, *arguments: str, stdin: int = asyncio.subprocess.DEVNULL) -> asyncio.subprocess.Process:
        environment = {**os.environ, "HEADWAY_ADDRESS": self.address, "NO_COLOR": "1", "COLUMNS": "200"}
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "headway.cli",
            *arguments,
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
        )

    async def run(self, *arguments: str, stdin: bytes | None = None) -> Finished:
        piped = asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE
        process = await self.start(*arguments, stdin=piped)
        return await self.finish(process, stdin)

    async def finish(self, process: asyncio.subprocess.Process, stdin: bytes | None = None) -> Finished:
        async with asyncio.timeout(DEADLINE_SECONDS):
            out, err = await process.communicate(stdin)
        assert process.returncode is not None
        return Finished(process.returncode, out, err.decode())


@pytest.fixture
def command_line(service: FakeService) -> CommandLine:
    return CommandLine(service.address)
