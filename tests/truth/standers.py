"""Those who stand in the consumer line of one queue, in every way there is, and leave it in every way; and those who
only look on."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc.aio

from headway.v1 import message_pb2
from headway.v1 import queue_service_pb2 as pb
from truth.verdict import Heard
from wire.calls import Line, leases, span

LONGEST_S = 0.15  # that somebody works
# A service that dies takes its calls along; on a busy machine the store may be late.
MAY_END = frozenset({grpc.StatusCode.UNAVAILABLE})


@dataclass
class Polled:
    """A place that a poll told of: the rank at some instant between call and answer."""

    heard: Heard
    asked_at: float


@dataclass
class Standers:
    """What all have in common."""

    hear: Callable[[Heard], None]
    enough: Callable[[], bool]
    polled: list[Polled] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)


class Stander:
    """One who comes again and again through one service, each time under another name."""

    def __init__(self, line: Line, standers: Standers, number: int) -> None:
        self._line = line
        self._all = standers
        self._random = random.Random(number)
        self._names = (f"c{number}-{turn}" for turn in itertools.count())

    async def run(self) -> None:
        """Until it is enough."""
        while not self._all.enough():
            kind = self._random.choices((self._stream, self._get, self._poll, self._look), (6, 3, 2, 1))[0]
            try:
                await kind()
            except grpc.aio.AioRpcError as error:
                if error.code() not in MAY_END:
                    self._all.errors.append(f"{kind.__name__}: {error.code()}: {error.details()}")
                await asyncio.sleep(0.05)

    async def _stream(self) -> None:
        """Stands, works, settles; leaves at some moment or goes on."""
        chance, name = self._random, next(self._names)
        stand = pb.Stand(consumer=name, keep_standing=chance.random() < 0.3, lease=span(chance.choice((200, 1_500))))
        call = self._line.stub.WatchPosition(pb.WatchPositionRequest(queue=self._line.name, stand=stand), timeout=60)
        last = 0
        try:
            async with asyncio.timeout(chance.choice((0.05, 1, 20))):
                async for told in call:
                    if told.HasField("granted"):
                        self._all.done["granted"] += 1
                        await self._work(leases(told.granted.deliveries))
                        continue
                    place = told.position
                    as_of = told.as_of.ToMicroseconds() / 1e6
                    self._all.hear(Heard(name.encode(), place.position, place.length, as_of, time.time()))
                    if place.moved_back != (0 < last < place.position):
                        self._all.errors.append(f"{name} moved from {last} to {place.position}: {place.moved_back}")
                    last = place.position
        except TimeoutError:
            self._all.done["left"] += 1
        finally:
            call.cancel()

    async def _work(self, tokens: list[str]) -> None:
        chance = self._random
        await asyncio.sleep(chance.uniform(0, LONGEST_S))
        match chance.choices(("ack", "give back", "lapse"), (6, 3, 1))[0]:
            case "ack":
                await self._line.ack(*tokens)
            case "give back":
                await self._line.delay(*tokens, delay_ms=0)

    async def _get(self) -> None:
        wait_ms = self._random.choice((0, 50, 2_000))
        answer = await self._line.get(
            self._random.randint(1, 2), wait_ms=wait_ms, lease_ms=1_000, consumer=next(self._names)
        )
        if answer.deliveries:
            self._all.done["got"] += 1
            await self._work(leases(answer.deliveries))

    async def _poll(self) -> None:
        """Until its turn: whoever polls once and stays away holds everybody up."""
        place, name = "", next(self._names)
        while True:
            asked_at = time.time()
            answer = await self._line.get(stand=True, place=place, consumer=name, lease_ms=1_000)
            if answer.deliveries:
                self._all.done["polled"] += 1
                await self._work(leases(answer.deliveries))
                return
            told = answer.standing
            place = told.place
            now = time.time()
            self._all.polled.append(Polled(Heard(place.encode(), told.position, told.length, now, now), asked_at))
            await asyncio.sleep(told.poll_min.ToMilliseconds() / 1_000 + 0.02)

    async def _look(self) -> None:
        """Takes part in nothing."""
        await self._line.peek(3)
        answer = await self._line.put(message_pb2.Message(payload=b"x"))
        watch = pb.WatchPositionRequest(queue=self._line.name, messages=pb.MessageIds(ids=[answer.results[0].id]))
        call = self._line.stub.WatchPosition(watch, timeout=10)
        await call.read()
        call.cancel()
