"""The driver of beanstalkd, beside a server that does what its protocol says, one command after the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bench.peers.drivers import beanstalkd
from bench.peers.driving import Task
from bench.peers.tally import Tally
from harness.conditions import eventually
from unit.bench.tasks import task

COUNT, FEW = 950, 20
WITHIN_S = 25  # longer than anything here takes


class Server:
    """One tube. If it `withholds`, no reserve but the first is answered before every job that it gave is deleted, or
    asked to be: commands that have come may lie behind one that waits."""

    def __init__(self, *, withholds: bool = False) -> None:
        self._withholds = withholds
        self._jobs: deque[tuple[int, bytes]] = deque()
        self._number = 0
        self._news = asyncio.Condition()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Its address."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            host, port = server.sockets[0].getsockname()
            yield f"{host}:{port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        commands: deque[tuple[list[bytes], bytes]] = deque()
        answering = asyncio.create_task(self._answer(commands, writer))
        try:
            while line := await reader.readline():
                words = line.split()
                body = await reader.readexactly(int(words[-1]) + 2) if words[0] == b"put" else b""
                async with self._news:
                    commands.append((words, body[:-2]))
                    self._news.notify_all()
        finally:
            answering.cancel()
            writer.close()

    async def _answer(self, commands: deque[tuple[list[bytes], bytes]], writer: asyncio.StreamWriter) -> None:
        held: set[int] = set()

        def is_free() -> bool:
            asked = {int(words[1]) for words, _ in commands if words[0] == b"delete"}
            return not self._withholds or held <= asked

        while True:
            async with self._news:
                await self._news.wait_for(lambda: commands)
                words, body = commands[0]
                match words[0]:
                    case b"use":
                        answer = b"USING"
                    case b"watch" | b"ignore":
                        answer = b"WATCHING 1"
                    case b"put":
                        self._number += 1
                        self._jobs.append((self._number, body))
                        answer = b"INSERTED %d" % self._number
                    case b"delete":
                        held.remove(int(words[1]))
                        answer = b"DELETED"
                    case _:
                        await self._news.wait_for(is_free)
                        if words[0] == b"reserve":
                            await self._news.wait_for(lambda: self._jobs)
                        answer = self._reserved(held)
                commands.popleft()
                self._news.notify_all()
            writer.write(answer + b"\r\n")

    def _reserved(self, held: set[int]) -> bytes:
        if not self._jobs:
            return b"TIMED_OUT"
        number, body = self._jobs.popleft()
        held.add(number)
        return b"RESERVED %d %d\r\n%b" % (number, len(body), body)


@asynccontextmanager
async def client(of: Task) -> AsyncIterator[beanstalkd.Client]:
    opened = beanstalkd.Client(of)
    await opened.open()
    yield opened
    opened._writer.close()


@asynccontextmanager
async def both(server: Server, count: int) -> AsyncIterator[tuple[Task, beanstalkd.Client, beanstalkd.Client]]:
    """What they are to do, one that puts and one that takes, both connected."""
    async with server.serving() as address, asyncio.timeout(30):
        one = task("beanstalkd", address=address, count=count)
        async with client(one) as producer, client(one) as consumer:
            yield one, producer, consumer


@pytest.mark.parametrize("are_there_first", [True, False])
async def test_each_job_is_done_with_once(are_there_first: bool, tmp_path: Path) -> None:
    tally = Tally.made(tmp_path / "tally", COUNT)
    async with both(Server(), COUNT) as (one, producer, consumer):
        if are_there_first:
            await producer.put(one.batches(0))
        taking = asyncio.create_task(consumer.take(tally))
        if not are_there_first:
            await producer.put(one.batches(0))
        await eventually(lambda: tally.is_complete, within=WITHIN_S)
        taking.cancel()
    assert tally.fault() == ""


async def test_a_job_is_deleted_before_more_are_waited_for(tmp_path: Path) -> None:
    tally = Tally.made(tmp_path / "tally", FEW)
    async with both(Server(withholds=True), FEW) as (one, producer, consumer):
        await producer.put(one.batches(0))
        taking = asyncio.create_task(consumer.take(tally))
        await eventually(lambda: tally.is_complete, within=WITHIN_S)
        taking.cancel()
    assert tally.fault() == ""


def test_replies_are_found_however_they_are_cut() -> None:
    data = b"INSERTED 7\r\nRESERVED 12 7\r\nx\r\ny\r\nz\r\nDELETED\r\nTIMED_OUT\r\n"
    replies = [(b"INSERTED 7", b""), (b"RESERVED 12 7", b"x\r\ny\r\nz"), (b"DELETED", b""), (b"TIMED_OUT", b"")]
    assert beanstalkd.whole(data) == (replies, b"")
    for cut in range(len(data)):
        first, left = beanstalkd.whole(data[:cut])
        assert data[:cut].endswith(left)
        assert (first + beanstalkd.whole(left + data[cut:])[0]) == replies
