"""Thousands who wait for a lease, in every way, and are cancelled at random moments: nothing is left of them."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import grpc
import psutil
import pytest

from faults.conftest import Open, Serve
from faults.moments import at_rest
from harness import ServiceProcess, StoreServer, error_of, eventually
from headway.v1 import queue_service_pb2
from headway.v1.queue_pb2 import Poll
from wire.calls import Line, leases, span
from wire.operators import assert_sound

pytestmark = pytest.mark.any_store

AT_ONCE = 24
LONGEST_S = 0.25  # from the call to its cancellation
LONG_MS = 3_600_000
SHORT_MS = 300  # of Gets: an answer that is on its way when the call is cancelled cannot be called back
WINDOW_S = 30.0  # the longest that a place is kept, and a lease of a Get: 10 s, and some for a busy machine
SLACK = 4
MOST_CONNECTIONS = 16  # to the store, of a service: it opens them as it comes to need them
# On a busy machine the store may be late for some: then it is shown for them, too, that nothing stays.
MAY_END = ("PLACE_LOST", "POLL_TOO_SOON", "STORE_UNAVAILABLE", "OUTCOME_UNKNOWN")
WAITS_ON = (b"consumers", b"places", b"place_at", b"owners", b"held", b"turns", b"leases", b"lease", b"body", b"bundle")


class Crowd:
    """Calls that are cancelled, on one queue. Whoever is granted something settles it, or is cancelled before."""

    def __init__(self, lines: list[Line], count: int, *kinds: str) -> None:
        self.lines = lines
        self.kinds = kinds
        self.left = count
        self.done: Counter[str] = Counter()
        self._random = random.Random(count)
        self._places: list[str] = []

    async def run(self) -> None:
        """Until all have been cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._go_on())

    async def _go_on(self) -> None:
        while self.left > 0:
            self.left -= 1
            await self._one()

    async def _one(self) -> None:
        chance = self._random
        line = chance.choice(self.lines)
        after_s = chance.uniform(0, LONGEST_S)
        kind = chance.choice(self.kinds)
        place = chance.choice(self._places) if "again" in kind and self._places else ""
        self.done[kind] += 1
        if "stand" in kind:
            await self._stream(line, after_s, keep_standing=kind == "keep standing", place=place)
        else:
            await self._get(line, after_s, stand="poll" in kind, place=place)

    async def _get(self, line: Line, after_s: float, *, stand: bool, place: str) -> None:
        wait_ms = self._random.choice((0, 20, 5_000))
        request = queue_service_pb2.GetRequest(
            queue=line.name, wait=span(wait_ms), lease=span(SHORT_MS), stand=stand, place=place
        )
        call = line.stub.Get(request, timeout=30)
        done, _ = await asyncio.wait({asyncio.ensure_future(call.code())}, timeout=after_s)
        if not done:
            call.cancel()
            self.done["cancelled Gets"] += 1
        with suppress(asyncio.CancelledError):
            try:
                answer = await call
            except grpc.aio.AioRpcError as error:
                self._note(error)
                return
            if answer.HasField("standing"):
                self._places = [*self._places[-30:], answer.standing.place]
            await self._settle(line, leases(answer.deliveries))

    async def _stream(self, line: Line, after_s: float, *, keep_standing: bool, place: str) -> None:
        stand = queue_service_pb2.Stand(keep_standing=keep_standing, place=place, lease=span(LONG_MS), max_messages=2)
        call = line.stub.WatchPosition(queue_service_pb2.WatchPositionRequest(queue=line.name, stand=stand))

        async def read() -> None:
            async for told in call:
                if told.HasField("position"):
                    self._places = [*self._places[-30:], told.position.place]
                if told.HasField("granted") and self._random.random() < 0.5:
                    self.done["grants settled"] += 1
                    await self._settle(line, leases(told.granted.deliveries))
                elif told.HasField("granted"):
                    self.done["grants kept"] += 1

        reading = asyncio.create_task(read())
        await asyncio.wait({reading}, timeout=after_s)
        if call.cancel():
            self.done["cancelled streams"] += 1
        try:
            await reading
        except asyncio.CancelledError:
            pass
        except grpc.aio.AioRpcError as error:
            if not call.cancelled():  # some ways of reading tell one's own cancellation like this
                self._note(error)

    async def _settle(self, line: Line, tokens: list[str]) -> None:
        if tokens:
            with suppress_trouble():
                await asyncio.shield(line.ack(*tokens))

    def _note(self, error: grpc.aio.AioRpcError) -> None:
        reason = error_of(error).reason
        assert reason in MAY_END
        self.done[reason] += 1


@contextmanager
def suppress_trouble() -> Iterator[None]:
    """What a busy machine may do is no defect here."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        assert error_of(error).reason in MAY_END


async def cancel(crowd: Crowd, *, put_at_once: int) -> None:
    """Until all are done; now and then there is something to lease."""
    running = asyncio.create_task(crowd.run())
    line = crowd.lines[0]
    while not running.done():
        with suppress_trouble():
            if (await line.describe()).counts.length < 3:
                await line.put(*(b"x" for _ in range(put_at_once)))
        await asyncio.wait({running}, timeout=0.03)
    await running


STREAMS = ("get", "stand", "keep standing", "stand again")
POLLS = ("poll", "poll again", "poll again")


async def cancel_some(lines: list[list[Line]], count: int) -> Counter[str]:
    """Streams on one queue, with few slots. Polls on another: what they stand for is kept for them for long, so there
    is more to lease."""
    crowds = Crowd(lines[0], count * 2 // 3, *STREAMS), Crowd(lines[1], count // 3, *POLLS)
    await asyncio.gather(cancel(crowds[0], put_at_once=20), cancel(crowds[1], put_at_once=100))
    return crowds[0].done + crowds[1].done


def open_things(services: list[ServiceProcess], store: StoreServer) -> list[int]:
    """Descriptors and threads of each service, and connections of the store."""
    with store.client() as client:
        counts = [len(client.client_list())]
    for service in services:
        process = psutil.Process(service.pid)
        counts += [process.num_fds(), process.num_threads()]
    return counts


async def cancel_many(
    count: int, store: StoreServer, serve: Serve, open_line: Open, figure: Callable[[str, str], None]
) -> None:
    services = [await serve(store.url, HEADWAY_LOG_LEVEL="info") for _ in range(2)]
    lines = [[await open_line(service, name) for service in services] for name in ("streams", "polls")]
    poll = Poll(base=span(10), per_position=span(0), max=span(10))
    await lines[0][0].create(limit=20, place_grace=span(200), turns=3)
    await lines[1][0].create(poll=poll)
    await cancel_some(lines, AT_ONCE * 4)
    before = open_things(services, store)
    done = await cancel_some(lines, count)
    figure(f"{count:,} calls and streams", f"{dict(sorted(done.items()))}")
    assert done["cancelled streams"] > count / 6
    assert done["cancelled Gets"] > count / 20
    with store.client() as client:
        grants = sum(
            int(client.hget(f"__pressure__:{name}:x:meta", "n_departed") or 0) for name in ("streams", "polls")
        )
        figure("messages leased meanwhile", str(grants))
        assert grants > count / 50  # that anything came of it; a busy machine does little meanwhile

        def is_nothing_left() -> bool:
            left = [key for key in client.keys("__pressure__:*:x:*") if key.rpartition(b":x:")[2] in WAITS_ON]
            assert not left
            return True

        await eventually(is_nothing_left, within=WINDOW_S)
    for line, _ in lines:
        counts = await line.counts()
        assert (counts.leased, counts.consumers_waiting) == (0, 0)
        await assert_sound(line)
    await at_rest(store)  # nobody tries any more
    after = open_things(services, store)
    figure("connections, descriptors and threads before and after", f"{before} {after}")
    more = [now - then for then, now in zip(before, after, strict=True)]
    connections, *of_services = more
    descriptors, threads = of_services[::2], of_services[1::2]
    assert connections <= sum(descriptors) + SLACK, (before, after)  # each is the descriptor of a service
    assert max(descriptors) <= MOST_CONNECTIONS, (before, after)
    assert max(threads) <= SLACK, (before, after)
    for service in services:
        service.signal(signal.SIGTERM)
        assert await asyncio.to_thread(service.wait) == 0
        log = service.log.read_text()
        for trouble in ("handlers_left_running", "took too long", "task.failed", "[error"):
            assert trouble not in log


@pytest.mark.long
async def test_hundreds_of_cancels_leave_nothing_behind(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open, figure: Callable[[str, str], None]
) -> None:
    await cancel_many(600, fresh_store_server, serve, open_line, figure)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_ten_thousand_cancels_leave_nothing_behind(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open, figure: Callable[[str, str], None]
) -> None:
    await cancel_many(10_000, fresh_store_server, serve, open_line, figure)
