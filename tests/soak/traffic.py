"""Producers, workers and foreign clients that behave badly, and what they saw. `verdict` says what must be true of it.

A message is known by its payload, which is also its id where it has one. Instants are the store's. A lease is live from
its grant (its expiry less its span) until it expired or was given back, so two leases of one message may overlap only
if the earlier one was given back by its holder.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import grpc
from google.protobuf.duration_pb2 import Duration

from harness import error_of
from headway.v1 import message_pb2
from headway.v1 import queue_service_pb2 as pb
from headway.v1.queue_service_pb2_grpc import QueueServiceStub

if TYPE_CHECKING:
    from headway.v1.queue_service_pb2_grpc import QueueServiceAsyncStub

Stub: TypeAlias = "QueueServiceAsyncStub"
Connect: TypeAlias = Callable[[str], grpc.aio.Channel]
PASSING = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED}
CALL_S = 5.0
PUT_WAIT_MS, GET_WAIT_MS = 1_000, 200


def ms(value: float) -> Duration:
    """A span of the schema."""
    duration = Duration()
    duration.FromTimedelta(timedelta(milliseconds=value))
    return duration


@dataclass
class Seen:
    """What all clients together saw."""

    lease_ms: int
    accepted: set[str] = field(default_factory=set)
    delivered: Counter[str] = field(default_factory=Counter)
    acked: Counter[str] = field(default_factory=Counter)
    dead: set[str] = field(default_factory=set)
    withdrawn: set[str] = field(default_factory=set)
    mortal: set[str] = field(default_factory=set)  # put with a time to live
    foreign: set[str] = field(default_factory=set)  # taken by a foreign client
    moods: Counter[str] = field(default_factory=Counter)  # how often workers did what
    leases: dict[str, list[tuple[int, int, str]]] = field(default_factory=lambda: defaultdict(list))
    given_back: set[str] = field(default_factory=set)
    unexpected: list[str] = field(default_factory=list)
    roles_taken: list[tuple[str, float, float]] = field(default_factory=list)  # told of one, after a look in that time
    stopped: asyncio.Event = field(default_factory=asyncio.Event)  # nothing is put any more
    drained: asyncio.Event = field(default_factory=asyncio.Event)  # nothing is left

    def note(self, deliveries: Sequence[message_pb2.Delivery]) -> None:
        """Messages that a client was given."""
        for delivery in deliveries:
            name = delivery.message.payload.decode()
            self.delivered[name] += 1
            expires = delivery.lease_expires_at.ToMilliseconds()
            self.leases[name].append((expires - self.lease_ms, expires, delivery.lease))

    def note_error(self, call: str, error: grpc.aio.AioRpcError, *, looked_since: float = 0.0) -> bool:
        """True if the call may be repeated; others are noted. `looked_since`: not before then its last look began."""
        if error.code() in PASSING:
            return True
        said = error_of(error)
        if said.reason == "ROLE_IN_USE" and looked_since:
            self.roles_taken.append((said.metadata["role"], looked_since, time.monotonic()))
            return True
        self.unexpected.append(f"{call}: {error.code()} {error.details()}")
        return False


@dataclass
class Producer:
    """Puts batches with ids of its own, repeats a batch whose outcome is not known, and thinks better of some."""

    stub: Stub
    queue: str
    name: str
    seen: Seen
    is_honest: bool
    pause_s: float = 0.02
    can_withdraw: bool = True
    can_expire: bool = True

    async def run(self) -> None:
        """Until stopped."""
        number = 0
        while not self.seen.stopped.is_set():
            names = [f"{self.name}-{number + n}" for n in range(random.randint(1, 8))]
            number += len(names)
            messages = [
                message_pb2.Message(id=name, payload=name.encode(), delay=ms(random.choice((0, 0, 0, 150))))
                for name in names
            ]
            if not self.is_honest and self.can_expire and random.random() < 0.1:
                for message in messages:
                    message.time_to_live.CopyFrom(ms(300))
                self.seen.mortal.update(names)
            if not await self._put(messages):
                return
            if not self.is_honest and self.can_withdraw and random.random() < 0.05:
                await self._withdraw(names[:2])
            await asyncio.sleep(random.random() * self.pause_s)

    async def _put(self, messages: Sequence[message_pb2.Message]) -> bool:
        """False if it makes no sense to go on."""
        while messages:
            request = pb.PutRequest(
                queue=self.queue, messages=messages, wait=ms(PUT_WAIT_MS), on_duplicate=message_pb2.ON_DUPLICATE_KEEP
            )
            began = time.monotonic()
            try:
                answer = await self.stub.Put(request, timeout=CALL_S)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED and self.can_expire:
                    self.can_expire = False  # this version does not serve it
                    for message in messages:
                        message.ClearField("time_to_live")
                    continue
                if not self.seen.note_error("Put", error, looked_since=began + PUT_WAIT_MS / 1_000):
                    return False
                if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and self.seen.stopped.is_set():
                    return True  # full to the end: nothing of it was accepted
                await asyncio.sleep(0.05)
                continue
            self.seen.accepted |= {result.id for result in answer.results if not result.HasField("error")}
            if self.seen.stopped.is_set():
                return True
            messages = [m for m, r in zip(messages, answer.results, strict=True) if r.HasField("error")]
        return True

    async def _withdraw(self, names: list[str]) -> None:
        try:
            answer = await self.stub.Withdraw(pb.WithdrawRequest(queue=self.queue, message_ids=names), timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                self.can_withdraw = False  # this version does not serve it
            else:
                self.seen.note_error("Withdraw", error)
            return
        self.seen.withdrawn |= {result.id for result in answer.results if result.withdrawn}


@dataclass
class Worker:
    """Gets and settles until nothing is left. Who is not honest crashes, hangs, cancels and is late."""

    address: str
    connect: Connect
    queue: str
    seen: Seen
    is_honest: bool

    async def run(self) -> None:
        """One connection after the other: each ends in a crash, but for the last."""
        while not self.seen.drained.is_set():
            async with self.connect(self.address) as channel:
                stub: Stub = QueueServiceStub(channel)
                while not self.seen.drained.is_set() and await self._turn(stub, channel):
                    pass

    async def _turn(self, stub: Stub, channel: grpc.aio.Channel) -> bool:
        """One Get and what follows. False: it crashed."""
        request = pb.GetRequest(
            queue=self.queue, max_messages=random.randint(1, 6), wait=ms(GET_WAIT_MS), lease=ms(self.seen.lease_ms)
        )
        began = time.monotonic()
        call = stub.Get(request, timeout=CALL_S)
        mood = 1.0 if self.is_honest else random.random()
        if mood < 0.2:
            await asyncio.sleep(random.random() * 0.05)
            if mood < 0.04:
                self.seen.moods["crashed in a Get"] += 1
                await channel.close()
                return False
            if call.cancel():
                self.seen.moods["cancelled a Get"] += 1
                return True
        try:
            answer = await call
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) and task.cancelling():
                raise
            return True
        except grpc.aio.AioRpcError as error:
            is_passing = self.seen.note_error("Get", error, looked_since=began + GET_WAIT_MS / 1_000)
            await asyncio.sleep(0.05)
            return is_passing
        self.seen.note(answer.deliveries)
        return not answer.deliveries or await self._settle(stub, channel, answer.deliveries)

    async def _settle(self, stub: Stub, channel: grpc.aio.Channel, deliveries: Sequence[message_pb2.Delivery]) -> bool:
        leases = [delivery.lease for delivery in deliveries]
        names = [delivery.message.payload.decode() for delivery in deliveries]
        mood = 1.0 if self.is_honest else random.random()
        if mood < 0.06:
            self.seen.moods["crashed with leases"] += 1
            await channel.close()
            return False
        if mood < 0.12:
            self.seen.moods["hung, then late"] += 1
            await asyncio.sleep(self.seen.lease_ms / 1_000 * 1.3)
        elif mood < 0.16:
            self.seen.moods["extended, then late"] += 1
            with contextlib.suppress(grpc.aio.AioRpcError):
                await stub.Extend(pb.ExtendRequest(queue=self.queue, leases=leases, lease=ms(150)), timeout=CALL_S)
                self.seen.given_back |= set(leases)  # it may end before the instant that the delivery told
            await asyncio.sleep(0.3)
        elif mood < 0.26:
            self.seen.moods["gave back"] += 1
            await self._give_back(stub, leases, names)
            return True
        for _ in range(5):
            try:
                answer = await stub.Ack(pb.AckRequest(queue=self.queue, leases=leases), timeout=CALL_S)
            except grpc.aio.AioRpcError as error:
                self.seen.note_error("Ack", error)
                await asyncio.sleep(0.05)
                continue
            for name, result in zip(names, answer.results, strict=True):
                if result.settled == message_pb2.SETTLED_ACKED:
                    self.seen.acked[name] += 1
            return True
        return True

    async def _give_back(self, stub: Stub, leases: Sequence[str], names: Sequence[str]) -> None:
        request = pb.DelayRequest(queue=self.queue, leases=leases, keep_attempt=random.random() < 0.5)
        if (delay := random.choice((0, 100, None))) is not None:
            request.delay.CopyFrom(ms(delay))
        self.seen.given_back |= set(leases)
        try:
            answer = await stub.Delay(request, timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            self.seen.note_error("Delay", error)
            return
        self.seen.dead |= {
            n for n, r in zip(names, answer.results, strict=True) if r.settled == message_pb2.SETTLED_DEAD
        }


def verdict(seen: Seen, *, had_faults: bool) -> list[str]:
    """What should be true and is not."""
    wrong = list(seen.unexpected)

    def check(names: set[str], text: str) -> None:
        if names:
            wrong.append(f"{len(names)} {text}, {sorted(names)[:3]} among them")

    ends = seen.withdrawn | seen.mortal | seen.foreign
    # An answer that is on its way when its caller crashes is known to nobody; if that befalls each attempt, it is dead.
    check(seen.accepted - set(seen.delivered) - ends - seen.dead, "accepted messages were neither delivered nor dead")
    check({name for name, count in seen.acked.items() if count > 1}, "messages were acked for good twice")
    check(seen.withdrawn & set(seen.acked), "messages were withdrawn and acked")
    check(seen.dead & set(seen.acked), "messages were dead and acked")
    overlapping = {
        name
        for name, given in seen.leases.items()
        for (_, expires, lease), (start, _, _) in pairwise(sorted(given))
        if start < expires and lease not in seen.given_back
    }
    check(overlapping, "messages had two live leases")
    if not had_faults:
        again = {name for name, count in seen.delivered.items() if count > 1}
        check(again, "messages were delivered again without need")
        check(seen.accepted - set(seen.acked), "messages were not acked")
    return wrong
