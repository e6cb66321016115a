"""Clients of one queue that do anything at random, a foreign one among them, and those who watch."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import grpc
import grpc.aio
import redis

from headway.v1 import message_pb2
from headway.v1 import queue_service_pb2 as pb
from soak.foreign import ForeignClient
from truth.verdict import Heard
from wire.calls import Line, span

SHORTEST, LONGEST = 40, 200  # the line is kept about so long
IDS_ON_A_STREAM = 20
BEHIND_S, YIELDS_S = 0.5, 0.1  # so old a position is when those who listen are behind; and who acts then waits so long


@dataclass
class Crowd:
    """What is known in common: which messages there may be, and how much was done."""

    length: Callable[[], int]
    hear: Callable[[Heard], None]
    most: int  # operations in all
    done: Counter[str] = field(default_factory=Counter)
    age_s: float = 0.0  # of the position heard last, when it was heard
    names: dict[str, bytes] = field(default_factory=dict)  # id → the name in its payload
    recent: list[str] = field(default_factory=list)  # ids that may still wait
    errors: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many operations on messages were done."""
        return sum(self.done.values())

    @property
    def is_over(self) -> bool:
        """Whether that is enough."""
        return self.count >= self.most

    def listen(self, heard: Heard) -> None:
        """Somebody heard a position."""
        self.age_s = heard.at - heard.as_of
        self.hear(heard)

    async def let_listeners_go_first(self) -> None:
        """All who act and all who listen share one thread. Where that is slow, who acts leaves it to who has still to
        read what has come: what is judged is what was told, not how long it lay unread."""
        if self.age_s > BEHIND_S:
            await asyncio.sleep(YIELDS_S)

    def enter(self, message_id: str, name: bytes) -> None:
        """A message was put."""
        self.names[message_id] = name
        self.recent.append(message_id)
        if len(self.recent) > 3 * LONGEST:
            for old in self.recent[:LONGEST]:
                self.names.pop(old, None)
            del self.recent[:LONGEST]


class Client:
    """Puts, gets, settles and withdraws through one service process."""

    def __init__(self, line: Line, crowd: Crowd, number: int) -> None:
        self._line = line
        self._crowd = crowd
        self._letter = f"p{number}"
        self._random = random.Random(number)
        self._put_count = 0
        self._leases: list[str] = []

    async def run(self) -> None:
        """Until it is enough."""
        chance = self._random
        while not self._crowd.is_over:
            length = self._crowd.length()
            is_short, is_long = length < SHORTEST, length > LONGEST
            step = chance.choices(
                (self._put, self._get, self._settle, self._withdraw),
                (8 if is_short else 0 if is_long else 3, 1 if is_short else 8 if is_long else 3, 6, 0.5),
            )[0]
            await self._crowd.let_listeners_go_first()
            try:
                await step()
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:  # the foreign client holds the role
                    raise

    async def _put(self) -> None:
        chance, messages = self._random, []
        for _ in range(chance.randint(1, 12)):
            self._put_count += 1
            name = f"<{self._letter}-{self._put_count}>"
            message = message_pb2.Message(id=name if chance.random() < 0.7 else "", payload=name.encode())
            if chance.random() < 0.08:
                message.delay.CopyFrom(span(chance.randint(1, 700)))
            if chance.random() < 0.05:
                message.time_to_live.CopyFrom(span(chance.randint(1, 1_500)))
            messages.append(message)
        answer = await self._line.put(*messages, wait_ms=1_000)
        for result, message in zip(answer.results, messages, strict=True):
            self._crowd.enter(result.id, message.payload)
        self._crowd.done["put"] += len(messages)

    async def _get(self) -> None:
        lease_ms = self._random.choice((200, 1_000, 20_000, 20_000))
        answer = await self._line.get(self._random.randint(1, 10), lease_ms=lease_ms, wait_ms=100)
        self._leases += [delivery.lease for delivery in answer.deliveries]
        self._crowd.done["get"] += len(answer.deliveries)

    async def _settle(self) -> None:
        chance = self._random
        count = min(len(self._leases), chance.randint(1, 10))
        chance.shuffle(self._leases)
        leases, self._leases = self._leases[:count], self._leases[count:]
        if not leases:
            return
        match chance.choices(("ack", "give back", "delay", "extend", "lapse"), (6, 3, 1, 1, 0.3))[0]:
            case "ack":
                await self._line.ack(*leases)
                self._crowd.done["ack"] += count
            case "give back":
                await self._line.delay(*leases, delay_ms=0, keep_attempt=chance.random() < 0.5)
                self._crowd.done["give back"] += count
            case "delay":
                await self._line.delay(*leases, delay_ms=chance.randint(1, 500))
                self._crowd.done["delay"] += count
            case "extend":
                progress = message_pb2.Progress(fraction=chance.random())
                request = pb.ExtendRequest(queue=self._line.name, leases=leases, lease=span(300), progress=progress)
                await self._line.stub.Extend(request, timeout=20)
                self._crowd.done["extend"] += count
            case "lapse":  # forgotten
                self._crowd.done["lapse"] += count

    async def _withdraw(self) -> None:
        if len(self._crowd.recent) < 2:
            return
        ids = self._random.sample(self._crowd.recent, 2)
        if self._random.random() < 0.3:
            await self._line.delay(message_ids=ids, delay_ms=self._random.randint(0, 400))
            self._crowd.done["postpone"] += 2
        else:
            await self._line.withdraw(*ids)
            self._crowd.done["withdraw"] += 2


class Onlooker:
    """Watches some messages for a while, then others."""

    def __init__(self, line: Line, crowd: Crowd, number: int) -> None:
        self._line = line
        self._crowd = crowd
        self._random = random.Random(-number - 1)

    async def run(self) -> None:
        """Until it is enough."""
        while not self._crowd.is_over:
            recent = self._crowd.recent[-LONGEST:]
            if len(recent) < IDS_ON_A_STREAM:
                await asyncio.sleep(0.05)
                continue
            ids = self._random.sample(recent, IDS_ON_A_STREAM)
            try:
                async with asyncio.timeout(self._random.expovariate(1 / 3) + 0.05):
                    await self._watch(ids)
            except TimeoutError:
                self._crowd.done["streams left"] += 1
            else:
                self._crowd.done["streams ended"] += 1

    async def _watch(self, ids: Sequence[str]) -> None:
        names = {message_id: self._crowd.names[message_id] for message_id in ids if message_id in self._crowd.names}
        if not names:
            return
        last: dict[str, int] = {}
        request = pb.WatchPositionRequest(queue=self._line.name, messages=pb.MessageIds(ids=list(names)))
        call = self._line.stub.WatchPosition(request, timeout=60)
        try:
            async for told in call:
                if told.WhichOneof("event") != "position":
                    continue
                place = told.position
                if place.state != pb.STATE_WAITING:
                    last.pop(place.id, None)
                    continue
                as_of = told.as_of.ToMicroseconds() / 1e6
                self._crowd.listen(Heard(names[place.id], place.position, place.length, as_of, time.time()))
                before = last.get(place.id, 0)
                if place.moved_back and not 0 < before < place.position:
                    self._crowd.errors.append(f"{place.id} moved back from {before} to {place.position}")
                last[place.id] = place.position
        except grpc.aio.AioRpcError as error:
            self._crowd.errors.append(f"{error.code()}: {error.details()}")
        finally:
            call.cancel()


class Stranger(ForeignClient):
    """A foreign client that puts and takes, faster than its kind."""

    def __init__(self, client: redis.Redis, base: str, crowd: Crowd) -> None:
        super().__init__(client, base, bound=10**9)
        self._crowd = crowd

    def run(self, stopped: threading.Event) -> None:
        """Until stopped."""
        number = 0
        while not stopped.wait(random.random() * 0.04):
            if random.random() < (0.7 if self._crowd.length() < LONGEST else 0.3):
                number += self._put(f"<f0-{number}>")
            else:
                self._take()
            self._crowd.done["foreign"] += 1
