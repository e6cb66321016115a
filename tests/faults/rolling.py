"""Load on several services whose processes are restarted one after the other, and an account of every message."""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from datetime import timedelta

import headway
from harness import ServiceProcess
from headway.v1.message_pb2 import Settled

# Longer than any test: what lapses cannot hide what was left behind.
LEASE = timedelta(hours=1)
WAIT = timedelta(seconds=1)
PUTTERS = GETTERS = 4
SLOTS = 8


def free_ports(count: int) -> list[int]:
    """Ports that nobody has, for processes that must come back to the same one."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


class Fleet:
    """Services at fixed addresses."""

    def __init__(self, make: Callable[..., ServiceProcess], count: int, **settings: str) -> None:
        self._make = make
        self._settings = settings
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
        self._running: dict[str, ServiceProcess] = {}

    @property
    def target(self) -> str:
        """All of them, for a client."""
        return ",".join(self.addresses)

    async def start(self) -> None:
        """Starts all."""
        await asyncio.gather(*map(self._start, self.addresses))

    async def restart(self, address: str) -> None:
        """Ends one as a cluster does, and starts another in its place."""
        service = self._running[address]
        service.signal(signal.SIGTERM)
        assert await asyncio.to_thread(service.wait, within=20) == 0
        await self._start(address)

    async def _start(self, address: str) -> None:
        service = self._make(start=False, HEADWAY_LISTEN=address, **self._settings)
        self._running[address] = await asyncio.to_thread(service.start)


class Load:
    """Puts and works on one queue in every way, over and over. What fails is noted, not repeated."""

    def __init__(self, queue: headway.Queue, streams: headway.Queue) -> None:
        self._queue, self._streams = queue, streams
        self._numbers = itertools.count()
        self.put: set[str] = set()
        self.worked: Counter[str] = Counter()
        self.attempts: Counter[int] = Counter()
        self.failures: list[str] = []
        self._is_over = asyncio.Event()  # nothing more is put
        self._is_drained = asyncio.Event()  # and nothing is left to work on

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While the block lasts there is load; behind it everything that was put has been worked on."""
        putting = [
            *(asyncio.create_task(self._puts(self._put_by_call)) for _ in range(PUTTERS)),
            asyncio.create_task(self._put_on_stream()),
            asyncio.create_task(self._looks()),
        ]
        working = [
            *(asyncio.create_task(self._gets()) for _ in range(GETTERS)),
            asyncio.create_task(self._work()),
            asyncio.create_task(self._stands()),
        ]
        try:
            yield
            self._is_over.set()
            await asyncio.gather(*putting)
            async with asyncio.timeout(30):
                while len(self.worked) < len(self.put):  # noqa: ASYNC110 - nothing signals it
                    await asyncio.sleep(0.02)
            self._is_drained.set()
            await asyncio.gather(*working)
        finally:
            for task in (*putting, *working):
                task.cancel()
            await asyncio.wait((*putting, *working))

    def _fail(self, what: str, error: Exception) -> None:
        self.failures.append(f"{what}: {error!r}")

    # -- putting ------------------------------------------------------------------------------------------------------

    async def _puts(self, put: Callable[[str], Awaitable[object]]) -> None:
        while not self._is_over.is_set():
            name = f"m{next(self._numbers)}"
            try:
                await put(name)
            except headway.HeadwayError as error:
                self._fail(f"put {name}", error)
            else:
                self.put.add(name)
            await asyncio.sleep(0.002)

    async def _put_by_call(self, name: str) -> object:
        return await self._queue.put(name.encode(), id=name, wait=WAIT)

    async def _put_on_stream(self) -> None:
        async with self._streams.producer() as producer:
            await self._puts(lambda name: producer.put(name.encode(), id=name))

    async def _looks(self) -> None:
        while not self._is_over.is_set():
            try:
                await self._queue.describe()
            except headway.HeadwayError as error:
                self._fail("describe", error)
            await asyncio.sleep(0.002)

    # -- working ------------------------------------------------------------------------------------------------------

    def _note(self, name: str, attempt: int) -> None:
        self.worked[name] += 1
        self.attempts[attempt] += 1

    async def _gets(self) -> None:
        while not self._is_drained.is_set():
            try:
                answer = await self._queue.get(2, wait=WAIT, lease=LEASE)
                if not answer.deliveries:
                    continue
                settled = await self._queue.ack([each.lease for each in answer.deliveries])
            except headway.HeadwayError as error:
                self._fail("get or ack", error)
                continue
            for delivery, result in zip(answer.deliveries, settled, strict=True):
                if result.settled not in (Settled.SETTLED_ACKED, Settled.SETTLED_ALREADY_ACKED):
                    self.failures.append(f"ack {delivery.message.id}: {result}")
                self._note(delivery.message.id, delivery.attempt)

    async def _work(self) -> None:
        async def handle(lease: headway.Lease) -> None:
            await asyncio.sleep(0.005)
            self._note(lease.id, lease.attempt)

        await self._streams.run(handle, concurrency=SLOTS, lease=LEASE, stop=self._is_drained)

    async def _stands(self) -> None:
        while not self._is_drained.is_set():
            try:
                async with asyncio.timeout(1), self._streams.stand(lease=LEASE) as stand:
                    for lease in await stand.turn():
                        await lease.ack()
                        self._note(lease.id, lease.attempt)
            except (TimeoutError, headway.LeaseStale, headway.LeaseGone):
                continue  # the end of its stream gave back what it held: somebody else has it
            except headway.HeadwayError as error:
                self._fail("stand", error)
