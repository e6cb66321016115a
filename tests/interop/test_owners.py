"""Every step of a queue's life may be ours or theirs, in every combination."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import product

import pytest

from harness import eventually, refused
from interop.foreign import Foreign
from wire.calls import Keys, Line, leases, payloads
from wire.conditions import consumers_wait

STEPS = ("create", "put", "get", "close", "delete")
COMBINATIONS = [dict(zip(STEPS, owners, strict=True)) for owners in product(("ours", "theirs"), repeat=len(STEPS))]


@pytest.mark.parametrize(
    "owner",
    COMBINATIONS,
    ids=lambda owner: " ".join(step for step in STEPS if owner[step] == "theirs") or "none theirs",
)
async def test_a_queues_life_is_the_same_whoever_takes_which_step(
    line: Line, make_foreign: Callable[..., Foreign], keys: Keys, owner: dict[str, str]
) -> None:
    bound = 2
    if owner["create"] == "ours":
        assert (await line.create(bound=bound)).created
    else:
        await make_foreign().call("create", bound)
    foreign = make_foreign()
    assert (await line.describe()).policy.bound == foreign.queue.bound == bound

    for payload in (b"one", b"two"):
        if owner["put"] == "ours":
            await line.put(payload)
        else:
            await foreign.call("put", payload)
    assert keys.length == 2
    assert not keys.is_not_full

    async def get() -> bytes:
        if owner["get"] == "theirs":
            payload = await foreign.call("get")
            assert isinstance(payload, bytes)
            return payload
        deliveries = await line.take()
        await line.ack(*leases(deliveries))
        return payloads(deliveries)[0]

    assert await get() == b"one"
    assert keys.is_not_full

    if owner["close"] == "ours":
        assert (await line.close()).closed
    else:
        await foreign.call("close")
    assert (await line.describe()).closed
    assert await foreign.call("closed")
    with refused("QUEUE_CLOSED"):
        await line.put(b"three")
    with pytest.raises(foreign.errors.QueueClosedError):
        await foreign.call("put", b"three")

    assert await get() == b"two"
    with refused("QUEUE_DRAINED"):
        await line.get()
    with pytest.raises(foreign.errors.QueueClosedError):
        await foreign.call("get")

    if owner["delete"] == "ours":
        await line.delete()
    else:
        await foreign.call("delete")
        with refused("QUEUE_NOT_FOUND"):
            await line.delete()
    assert keys.all() == set()


async def test_who_creates_second_is_told_so(line: Line, make_foreign: Callable[..., Foreign]) -> None:
    await line.create(bound=3)
    foreign = make_foreign()
    with pytest.raises(foreign.errors.QueueAlreadyExistsError):
        await foreign.call("create", 3)
    assert not (await line.create(bound=3)).created


async def test_creating_what_a_foreign_client_made_is_the_same_policy_or_another(line: Line, foreign: Foreign) -> None:
    await foreign.call("create", 3)
    assert not (await line.create(bound=3)).created
    with refused("QUEUE_EXISTS") as said:
        await line.create(bound=4)
    assert said.metadata == {"queue": line.name, "fields": "bound"}


async def test_nothing_of_ours_disturbs_a_foreign_create_half_way(line: Line, keys: Keys) -> None:
    # Stock clients make a queue in four steps, and insist that each list is empty when they push its first token.
    async def look_at_it() -> None:
        calls = [
            line.describe(),
            line.peek(),
            line.get(wait_ms=20),
            line.extend("made-up"),
            line.ack("made-up"),
        ]
        await asyncio.gather(*calls, return_exceptions=True)

    keys.client.setnx(keys["bound"], 2)
    for token in ("producer_free", "consumer_free", "not_full"):
        await look_at_it()
        assert keys.client.lpush(keys[token], 0) == 1, token
    await look_at_it()
    await line.put(b"one")
    assert payloads(await line.take()) == [b"one"]


async def test_a_foreign_create_under_our_waiting_calls_is_not_disturbed(
    line: Line, make_foreign: Callable[..., Foreign]
) -> None:
    for number in range(15):
        foreign = make_foreign()
        await foreign.call("create", 2)
        waiting = [asyncio.create_task(line.get(wait_ms=2_000)) for _ in range(3)]
        await eventually(lambda: consumers_wait(line, 3))
        await foreign.call("delete")
        again = make_foreign()
        await again.call("create", 2)
        await again.call("put", b"%d" % number)
        done, _ = await asyncio.wait(waiting)
        assert len(done) == 3
        await again.call("delete")
