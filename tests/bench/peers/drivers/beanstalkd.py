"""beanstalkd by a client of our own that pipelines (greenstalk waits for every reply): commands go out together, and
replies are taken as they come, many at a time. A job that was reserved is deleted at once, with the next reserves."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

from bench.peers.driving import Task
from bench.peers.tally import Tally, number_of

PRIORITY, DELAY_S, RUN_S = 1, 0, 600
_CHUNK_BYTES = 1 << 16
_END = b"\r\n"


def whole(data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """The replies in it, each a line and the body of the job that it brings, if any; and what is not whole yet."""
    found, at = [], 0
    while (end := data.find(_END, at)) >= 0:
        line, body, then = data[at:end], b"", end + len(_END)
        if line.startswith(b"RESERVED "):
            size = int(line[line.rindex(b" ") :])
            if len(data) < then + size + len(_END):
                break
            body, then = data[then : then + size], then + size + len(_END)
        found.append((line, body))
        at = then
    return found, data[at:]


class Client:
    """One connection, using and watching one tube."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._unread = b""

    async def open(self) -> None:
        """Tubes come and go by themselves."""
        host, _, port = self.task.address.rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
        tube = self.task.queue.encode()
        self._writer.write(b"use %b\r\nwatch %b\r\nignore default\r\n" % (tube, tube))
        for expected in (b"USING", b"WATCHING", b"WATCHING"):
            assert (await self._reader.readline()).startswith(expected)

    async def _replies(self) -> list[tuple[bytes, bytes]]:
        """Those that have come, at least one."""
        found: list[tuple[bytes, bytes]] = []
        while not found:
            chunk = await self._reader.read(_CHUNK_BYTES)
            assert chunk, "the server has hung up"
            found, self._unread = whole(self._unread + chunk)
        return found

    async def put(self, batches: Iterator[list[bytes]]) -> None:
        """Batches are written ahead of the replies."""
        head = b"put %d %d %d " % (PRIORITY, DELAY_S, RUN_S)
        unanswered = 0
        for batch in batches:
            while unanswered and unanswered + len(batch) > self.task.unconfirmed:
                unanswered -= await self._inserted()
            self._writer.write(b"".join(head + b"%d\r\n%b\r\n" % (len(one), one) for one in batch))
            unanswered += len(batch)
        while unanswered:
            unanswered -= await self._inserted()

    async def _inserted(self) -> int:
        """How many more."""
        replies = await self._replies()
        assert all(line.startswith(b"INSERTED ") for line, _ in replies), replies
        return len(replies)

    async def take(self, tally: Tally) -> None:
        """Waits for one job. Each that comes asks for two more, if they are there, until a batch is asked for; when
        none was there it waits again. With more than a batch held each costs the server more."""
        deleting: deque[int] = deque()  # in the order of the answers
        self._writer.write(b"reserve\r\n")
        asked = 1
        while True:
            commands: list[bytes] = []
            for line, body in await self._replies():
                if line == b"DELETED":
                    tally.mark([deleting.popleft()])
                    continue
                asked -= 1
                if line != b"TIMED_OUT":
                    word, job, _ = line.split()
                    assert word == b"RESERVED", line
                    deleting.append(number_of(body))
                    more = min(2, self.task.batch - asked)
                    commands.append(b"delete %b\r\n" % job + b"reserve-with-timeout 0\r\n" * more)
                    asked += more
            if not asked:
                commands.append(b"reserve\r\n")
                asked = 1
            self._writer.write(b"".join(commands))
