"""The frame of a driver: one process that puts messages, or gets and acknowledges them, with so many clients. Standard
library only (and uvloop, where it is installed): drivers run in environments of their own.

A driver is a module of `bench.peers.drivers` with a class `Client`, one for each connection:

    def __init__(self, task): …
    async def open(self): …                  connects; makes the queue if it is not there
    async def put(self, batches): …          puts all, and returns when all are confirmed
    async def take(self, tally): …           gets and acknowledges for ever; marks what is acknowledged

or, where a framework runs the consumer itself, with `work(task, tally, begin)` in place of `take`: it gets ready, calls
`begin()`, which returns when the run begins, and works until it is killed.

Said to the one who started it, on stdout: `ready`, and `done` by a producer. It begins when it can read from the fifo.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.tally import Tally, payload

BATCH = 100  # messages that go together, unless the task says otherwise; also jobs that a framework has at a time
UNCONFIRMED = 1_000  # messages that may be sent, or held, and not confirmed yet, where a protocol can do that
QUIT_S = 3_600.0  # nobody drives for longer


@dataclass(frozen=True)
class Task:
    """What a process is to do."""

    driver: str
    role: str  # 'put' or 'take'
    address: str
    queue: str
    count: int  # of all messages of the run
    size: int  # bytes of each
    clients: int
    first: int  # the number of this process's first client among all clients
    of: int  # all clients
    fifo: str
    tally: str
    options: dict[str, Any]
    batch: int = BATCH
    unconfirmed: int = UNCONFIRMED

    @property
    def ahead(self) -> int:
        """So many batches may be sent and not confirmed yet."""
        return max(1, self.unconfirmed // self.batch)

    def batches(self, client: int) -> Iterator[list[bytes]]:
        """The share of a client, batch by batch."""
        number = self.first + client
        start, end = self.count * number // self.of, self.count * (number + 1) // self.of
        for begin in range(start, end, self.batch):
            yield [payload(one, self.size) for one in range(begin, min(begin + self.batch, end))]


def _say(word: str) -> None:
    print(word, flush=True)


def _begin(task: Task) -> None:
    _say("ready")
    Path(task.fifo).read_bytes()  # until it is closed by the one who opened it to write


async def _drive(task: Task, module: Any) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(task.clients + 2))
    clients = [module.Client(task) for _ in range(task.clients)]
    await clients[0].open()  # the first makes the queue
    await asyncio.gather(*(client.open() for client in clients[1:]))
    await asyncio.to_thread(_begin, task)
    async with asyncio.timeout(QUIT_S):
        if task.role == "put":
            await asyncio.gather(*(client.put(task.batches(n)) for n, client in enumerate(clients)))
            _say("done")
        else:
            tally = Tally(Path(task.tally), task.count)
            await asyncio.gather(*(client.take(tally) for client in clients))


def main() -> None:
    """Does the task of the command line."""
    task = Task(**json.loads(sys.argv[1]))
    module = importlib.import_module(f"bench.peers.drivers.{task.driver}")
    if task.role == "take" and hasattr(module, "work"):
        module.work(task, Tally(Path(task.tally), task.count), lambda: _begin(task))
        return
    try:
        import uvloop
    except ImportError:
        asyncio.run(_drive(task, module))
    else:
        uvloop.run(_drive(task, module))


if __name__ == "__main__":
    main()
