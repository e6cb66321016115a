"""Producers and workers that behave badly, and what they saw. Every event is noted; `verdict` says what must be true.

Instants are the store's. A lease is live from the grant (its expiry less its span) until it expired or was given back,
so two leases of one message may overlap only if the earlier one was given back by its holder.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import grpc
from google.protobuf.duration_pb2 import Duration

from headway.v1 import message_pb2
from headway.v1 import queue_service_pb2 as pb

if TYPE_CHECKING:
    from headway.v1.queue_service_pb2_grpc import QueueServiceAsyncStub

Stub: TypeAlias = "QueueServiceAsyncStub"
LEASE_MS = 700
PASSING = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED}


def ms(value: float) -> Duration:
    """A span of the schema."""
    duration = Duration()
    duration.FromTimedelta(timedelta(milliseconds=value))
    return duration


@dataclass
class Seen:
    """What all clients together saw."""

    accepted: set[str] = field(default_factory=set)
    delivered: Counter[str] = field(default_factory=Counter)
    acked: Counter[str] = field(default_factory=Counter)
    leases: dict[str, list[tuple[int, int, str]]] = field(default_factory=lambda: defaultdict(list))
    given_back: set[str] = field(default_factory=set)
    unexpected: list[str] = field(default_factory=list)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, deliveries: Sequence[message_pb2.Delivery]) -> None:
        """Messages that a client was given."""
        for delivery in deliveries:
            self.delivered[delivery.message.id] += 1
            expires = delivery.lease_expires_at.ToMilliseconds()
            self.leases[delivery.message.id].append((expires - LEASE_MS, expires, delivery.lease))


async def produce(stub: Stub, queue: str, name: str, seen: Seen, *, pause_s: float) -> None:
    """Puts batches with ids of its own, and repeats a batch whose outcome is not known."""
    number = 0
    while not seen.stopped.is_set():
        ids = [f"{name}-{number + n}" for n in range(random.randint(1, 8))]
        number += len(ids)
        messages = [
            message_pb2.Message(id=given, payload=given.encode(), delay=ms(random.choice((0, 0, 0, 150))))
            for given in ids
        ]
        request = pb.PutRequest(
            queue=queue, messages=messages, wait=ms(1_000), on_duplicate=message_pb2.ON_DUPLICATE_KEEP
        )
        while True:
            try:
                answer = await stub.Put(request, timeout=5)
            except grpc.aio.AioRpcError as error:
                if error.code() not in PASSING:
                    seen.unexpected.append(f"Put: {error.code()} {error.details()}")
                    return
                if seen.stopped.is_set():
                    return
                await asyncio.sleep(0.05)
                continue
            seen.accepted |= {result.id for result in answer.results if not result.HasField("error")}
            rest = [m for m, r in zip(request.messages, answer.results, strict=True) if r.HasField("error")]
            if not rest or seen.stopped.is_set():
                break
            request = pb.PutRequest(
                queue=queue, messages=rest, wait=ms(1_000), on_duplicate=message_pb2.ON_DUPLICATE_KEEP
            )
        await asyncio.sleep(random.random() * pause_s)


async def work(stub: Stub, queue: str, seen: Seen, *, is_honest: bool) -> None:
    """Gets and settles until nothing is left after the stop. Who is not honest crashes, hangs, cancels, is late."""
    empty_since: float | None = None
    while True:
        if seen.stopped.is_set() and empty_since is not None and time.monotonic() - empty_since > 2 * LEASE_MS / 1000:
            return
        request = pb.GetRequest(queue=queue, max_messages=random.randint(1, 6), wait=ms(200), lease=ms(LEASE_MS))
        call = stub.Get(request, timeout=5)
        if not is_honest and random.random() < 0.1:
            await asyncio.sleep(random.random() * 0.05)
            if call.cancel():
                continue
        try:
            answer = await call
        except asyncio.CancelledError:
            if asyncio.current_task() and asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
            continue
        except grpc.aio.AioRpcError as error:
            if error.code() not in PASSING:
                seen.unexpected.append(f"Get: {error.code()} {error.details()}")
                return
            await asyncio.sleep(0.05)
            continue
        seen.note(answer.deliveries)
        if not answer.deliveries:
            empty_since = empty_since or time.monotonic()
            continue
        empty_since = None
        await _settle(stub, queue, answer.deliveries, seen, is_honest=is_honest)


async def _settle(
    stub: Stub, queue: str, deliveries: Sequence[message_pb2.Delivery], seen: Seen, *, is_honest: bool
) -> None:
    leases = [delivery.lease for delivery in deliveries]
    mood = 1.0 if is_honest else random.random()
    if mood < 0.1:  # crashed: nobody hears of these leases again
        return
    if mood < 0.2:  # hung, and then late
        await asyncio.sleep(LEASE_MS / 1000 * 1.3)
    if mood < 0.3 and mood >= 0.2:
        request = pb.DelayRequest(queue=queue, leases=leases, keep_attempt=random.random() < 0.5)
        request.delay.CopyFrom(ms(random.choice((0, 100))))
        seen.given_back |= set(leases)
        await _quietly(stub.Delay(request, timeout=5))
        return
    for _ in range(5):
        with contextlib.suppress(grpc.aio.AioRpcError):
            answer = await stub.Ack(pb.AckRequest(queue=queue, leases=leases), timeout=5)
            for delivery, result in zip(deliveries, answer.results, strict=True):
                if result.settled == message_pb2.SETTLED_ACKED:
                    seen.acked[delivery.message.id] += 1
            return
        await asyncio.sleep(0.05)


async def _quietly(call: grpc.aio.UnaryUnaryCall[pb.DelayRequest, pb.DelayResponse]) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError):
        await call


def verdict(seen: Seen, *, had_faults: bool) -> list[str]:
    """What should be true and is not."""
    wrong = list(seen.unexpected)
    never = seen.accepted - set(seen.delivered)
    if never:
        wrong.append(f"{len(never)} accepted messages were never delivered, {sorted(never)[:3]} among them")
    twice = [name for name, count in seen.acked.items() if count > 1]
    if twice:
        wrong.append(f"{len(twice)} messages were acked for good twice, {sorted(twice)[:3]} among them")
    overlapping = [
        name
        for name, given in seen.leases.items()
        for (_, expires, lease), (start, _, _) in pairwise(sorted(given))
        if start < expires and lease not in seen.given_back
    ]
    if overlapping:
        wrong.append(f"{len(overlapping)} messages had two live leases, {overlapping[:3]} among them")
    if not had_faults:
        again = [name for name, count in seen.delivered.items() if count > 1]
        if again:
            wrong.append(f"{len(again)} messages were delivered again without need, {sorted(again)[:3]} among them")
        unacked = seen.accepted - set(seen.acked)
        if unacked:
            wrong.append(f"{len(unacked)} messages were not acked")
    return wrong
