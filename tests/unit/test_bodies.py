"""Room for bodies that come in: who waits for it, who is in nobody's way, and that all come in in the end."""

from __future__ import annotations

import asyncio
import random

import pytest
from starlette.types import Message, Receive, Scope, Send

from headwayd.http.bodies import SHARE_BYTES, Bodies, Body, Incoming

MOST = 1_000_000
SHARED = 3_000_000
CHUNK = 64 * 1024
SOON_S = 5.0


async def come(body: Body, size: int) -> bool:
    """Whether there is room for it now."""
    coming = asyncio.ensure_future(body.come(size, MOST))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    is_in = coming.done()
    if not is_in:
        coming.cancel()
        await asyncio.wait({coming})
    return is_in


async def test_a_body_that_was_only_announced_takes_no_room() -> None:
    incoming = Incoming(MOST)
    silent = [incoming.body() for _ in range(100)]
    for body in silent:
        assert await come(body, SHARE_BYTES)
    assert await come(incoming.body(), MOST)


async def test_what_has_come_takes_room_until_it_has_ended() -> None:
    incoming = Incoming(MOST - SHARE_BYTES)
    first, lent = incoming.body(), incoming.body()
    assert await come(first, MOST)
    assert await come(lent, CHUNK)  # the room besides
    assert await come(lent, MOST)  # has all of its rest
    assert await come(incoming.body(), SHARE_BYTES)
    assert not await come(incoming.body(), SHARE_BYTES + 1)
    lent.ended()
    lent = incoming.body()
    assert await come(lent, CHUNK)
    assert not await come(incoming.body(), CHUNK)
    first.ended()
    assert await come(incoming.body(), CHUNK)


async def test_whoever_came_first_is_served_first_and_has_room_for_all_of_its_rest() -> None:
    incoming = Incoming(2 * CHUNK)
    old, young, youngest = (incoming.body() for _ in range(3))
    assert await come(young, 2 * CHUNK + SHARE_BYTES)
    order: list[str] = []

    async def rest(name: str, body: Body) -> None:
        for _ in range(5):
            await body.come(CHUNK, MOST)
            await asyncio.sleep(0)
        order.append(name)
        body.ended()

    coming = (rest("youngest", youngest), rest("young", young), rest("old", old))
    await asyncio.wait_for(asyncio.gather(*coming), SOON_S)
    assert order == ["youngest", "old", "young"]  # nobody else waited when the first of them asked


@pytest.mark.parametrize("seed", range(20))
async def test_bodies_in_each_others_way_all_come_in_and_never_hold_more_than_there_is(seed: int) -> None:
    chance = random.Random(seed)
    incoming = Incoming(SHARED)
    there: dict[int, int] = {}
    peak = 0

    async def one(number: int) -> None:
        nonlocal peak
        body, left = incoming.body(), chance.randrange(MOST)
        gives_up = chance.random() < 0.3
        try:
            while left:
                size = min(left, chance.randrange(1, CHUNK))
                left -= size
                if gives_up and chance.random() < 0.1:
                    async with asyncio.timeout(0):
                        await body.come(size, MOST)
                await body.come(size, MOST)
                there[number] = there.get(number, 0) + size
                peak = max(peak, sum(max(each - SHARE_BYTES, 0) for each in there.values()))
                await asyncio.sleep(0)
        except TimeoutError:
            pass
        finally:
            there.pop(number, None)
            body.ended()

    await asyncio.wait_for(asyncio.gather(*map(one, range(50))), SOON_S)
    assert peak <= SHARED + MOST
    assert await come(incoming.body(), MOST)  # all was given back
    for _ in range(SHARED // MOST):
        assert await come(incoming.body(), MOST)


@pytest.mark.parametrize("length", [None, b"1", b"99999999"])
async def test_a_length_beside_a_transfer_encoding_says_nothing(length: bytes | None) -> None:
    """h11 reads what comes in chunks, however long it is."""
    incoming = Incoming(CHUNK)
    holds = asyncio.Event()
    chunks = iter([b"x" * CHUNK] * 2)

    async def receive() -> Message:
        for chunk in chunks:
            return {"type": "http.request", "body": chunk, "more_body": True}
        holds.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def app(_scope: Scope, receive: Receive, _send: Send) -> None:
        while True:
            await receive()

    async def send(_message: Message) -> None:
        raise AssertionError("nothing is to be said")

    headers = [(b"transfer-encoding", b"chunked"), *([(b"content-length", length)] if length else [])]
    bodies = Bodies(app, most_bytes=MOST, incoming=incoming)
    coming = asyncio.ensure_future(bodies({"type": "http", "headers": headers}, receive, send))
    await asyncio.wait_for(holds.wait(), SOON_S)
    assert not await come(incoming.body(), CHUNK)  # it has both rooms
    coming.cancel()
    await asyncio.wait({coming})
    assert await come(incoming.body(), CHUNK)
