"""beanstalkd by a client of our own that pipelines (greenstalk waits for every reply): a batch of commands goes out as
one write, then its replies are read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

from bench.peers.driving import Task
from bench.peers.tally import Tally, number_of

PRIORITY, DELAY_S, RUN_S = 1, 0, 600


class Client:
    """One connection, using and watching one tube."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def open(self) -> None:
        """Tubes come and go by themselves."""
        host, _, port = self.task.address.rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
        tube = self.task.queue.encode()
        self._writer.write(b"use %b\r\nwatch %b\r\nignore default\r\n" % (tube, tube))
        for expected in (b"USING", b"WATCHING", b"WATCHING"):
            assert (await self._reader.readline()).startswith(expected)

    async def put(self, batches: Iterator[list[bytes]]) -> None:
        """Batches are written ahead of the replies."""
        head = b"put %d %d %d " % (PRIORITY, DELAY_S, RUN_S)
        ahead: deque[int] = deque()
        for batch in batches:
            self._writer.write(b"".join(head + b"%d\r\n%b\r\n" % (len(one), one) for one in batch))
            ahead.append(len(batch))
            if len(ahead) == self.task.ahead:
                await self._inserted(ahead.popleft())
        await self._inserted(sum(ahead))

    async def _inserted(self, count: int) -> None:
        for _ in range(count):
            reply = await self._reader.readline()
            assert reply.startswith(b"INSERTED"), reply

    async def take(self, tally: Tally) -> None:
        """Waits for one job; then as many as there are, up to a batch; then deletes them all."""
        while True:
            self._writer.write(b"reserve\r\n")
            jobs = dict([await self._reserved() or (b"", 0)])
            more = self.task.batch - 1
            self._writer.write(b"reserve-with-timeout 0\r\n" * more)
            jobs |= dict([job for job in [await self._reserved() for _ in range(more)] if job])
            self._writer.write(b"".join(b"delete %b\r\n" % job for job in jobs))
            for number in jobs.values():
                reply = await self._reader.readline()
                assert reply == b"DELETED\r\n", reply
                tally.mark([number])

    async def _reserved(self) -> tuple[bytes, int] | None:
        reply = await self._reader.readline()
        if reply == b"TIMED_OUT\r\n":
            return None
        word, job, size = reply.split()
        assert word == b"RESERVED", reply
        return job, number_of(await self._reader.readexactly(int(size) + 2))
