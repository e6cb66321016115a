"""Fixtures of the client's tests: the in-memory service, a client connected to it, and the command line."""

import asyncio
import os
import pty
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

import headway
from client.fake_service import FakeQueue, FakeService, serving
from harness import ServiceProcess, StoreServer
from headway.v1.queue_pb2 import Policy

DEADLINE_SECONDS = 30


def _tasks_of_clients() -> list[asyncio.Task[Any]]:
    return [each for each in asyncio.all_tasks() if "/headway/_" in repr(each) or "/headway/core/" in repr(each)]


def client_tasks() -> list[str]:
    """The client's own tasks that are not finished."""
    return [repr(each) for each in _tasks_of_clients()]


@pytest_asyncio.fixture(autouse=True)
async def no_task_left() -> AsyncIterator[None]:
    """Ends the clients' tasks that a test left when it failed: its second try, and others, would find them."""
    yield
    if left := _tasks_of_clients():
        for each in left:
            each.cancel()
        await asyncio.wait(left, timeout=DEADLINE_SECONDS)


class Terminal:
    """A terminal for programs that a test runs: reads what they show as it comes, so that nobody waits for us."""

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        self._shown = b""
        self._seen_count = 0  # bytes that were looked at
        self._news = asyncio.Event()
        os.set_blocking(self._ours, False)
        asyncio.get_running_loop().add_reader(self._ours, self._read)

    def _read(self) -> None:
        self._shown += os.read(self._ours, 65536)
        self._news.set()

    async def until(self, wanted: str) -> bytes:
        """Waits until something is shown; what was shown behind the last such thing and up to this one."""
        begin = self._seen_count
        async with asyncio.timeout(DEADLINE_SECONDS):
            while (found := self._shown.find(wanted.encode(), begin)) < 0:
                self._news.clear()
                await self._news.wait()
        self._seen_count = found + len(wanted.encode())
        return self._shown[begin : self._seen_count]

    def type(self, text: str) -> None:
        """Presses keys."""
        os.write(self._ours, text.encode())

    def close(self) -> None:
        """Hangs up."""
        asyncio.get_running_loop().remove_reader(self._ours)
        os.close(self._ours)
        os.close(self.theirs)


@pytest_asyncio.fixture
async def terminal() -> AsyncIterator[Terminal]:
    opened = Terminal()
    yield opened
    opened.close()


@pytest.fixture
def real(fresh_store_server: StoreServer, make_service: Callable[..., ServiceProcess]) -> ServiceProcess:
    """A real service, on a store of this test's own."""
    return make_service(HEADWAY_REDIS_URL=fresh_store_server.url)


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


@dataclass
class CommandLine:
    """Runs `headway` against the in-memory service; nothing that it started outlives the test."""

    address: str
    started: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def start(
        self,
        *arguments: str,
        stdin: int = asyncio.subprocess.DEVNULL,
        stdout: int = asyncio.subprocess.PIPE,
        stderr: int = asyncio.subprocess.PIPE,
        **variables: str,
    ) -> asyncio.subprocess.Process:
        environment = {**os.environ, "HEADWAY_ADDRESS": self.address, "NO_COLOR": "1", "COLUMNS": "200", **variables}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "headway.cli",
            *arguments,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=environment,
        )
        self.started.append(process)
        return process

    async def run(self, *arguments: str, stdin: bytes | None = None) -> Finished:
        piped = asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE
        process = await self.start(*arguments, stdin=piped)
        return await self.finish(process, stdin)

    async def finish(self, process: asyncio.subprocess.Process, stdin: bytes | None = None) -> Finished:
        async with asyncio.timeout(DEADLINE_SECONDS):
            out, err = await process.communicate(stdin)
        assert process.returncode is not None
        return Finished(process.returncode, out or b"", (err or b"").decode())


@pytest_asyncio.fixture
async def command_line(service: FakeService) -> AsyncIterator[CommandLine]:
    runs = CommandLine(service.address)
    yield runs
    for process in runs.started:
        if process.returncode is None:
            process.kill()
            await process.communicate()
