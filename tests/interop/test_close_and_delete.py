"""Close and Delete, ours and theirs, with the other side in every state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import pytest

from harness import error_of, eventually, refused
from interop.foreign import Foreign
from wire.calls import FAILED_PRECONDITION, GONE, NOT_FOUND, Keys, Line, leases, message, payloads, span
from wire.conditions import consumers_wait, producers_wait


async def reason_of(call: asyncio.Task[object]) -> str:
    """Why a waiting call of ours failed."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await asyncio.wait_for(call, 10)
    return error_of(error.value).reason


# Close.


async def test_our_close_ends_a_blocked_foreign_get(line: Line, foreign: Foreign) -> None:
    await line.create()
    blocked = await foreign.block("get")
    await line.close()
    with pytest.raises(foreign.errors.QueueClosedError):
        await asyncio.wait_for(blocked, 10)


async def test_our_close_lets_foreign_clients_drain_and_then_tells_them(
    line: Line, make_foreign: Callable[..., Foreign]
) -> None:
    await line.create()
    await line.put(b"one", b"two")
    await line.close()
    foreign = make_foreign()
    assert await foreign.call("closed")
    assert [await foreign.call("get"), await foreign.call("get")] == [b"one", b"two"]
    for _ in range(3):  # the token is never used up
        with pytest.raises(foreign.errors.QueueClosedError):
            await foreign.call("get")
    with pytest.raises(foreign.errors.QueueClosedError):
        await foreign.call("put", b"three")
    with refused("QUEUE_DRAINED", FAILED_PRECONDITION):
        await line.get()


async def test_our_close_leaves_two_elements_and_our_calls_never_take_one(line: Line, keys: Keys) -> None:
    await line.create()
    await line.close()
    for _ in range(3):
        with refused("QUEUE_DRAINED"):
            await line.get()
    assert keys.client.llen(keys["closed"]) == 2


async def test_a_foreign_close_ends_our_waiting_get(line: Line, foreign: Foreign) -> None:
    await line.create()
    waiting = asyncio.create_task(line.get(wait_ms=20_000))
    await eventually(lambda: consumers_wait(line))
    await foreign.call("close")
    assert await reason_of(waiting) == "QUEUE_DRAINED"


async def test_a_foreign_close_ends_our_waiting_put(line: Line, foreign: Foreign) -> None:
    await line.create(bound=1)
    await line.put(b"one")
    waiting = asyncio.create_task(line.put(b"two", wait_ms=20_000))
    await eventually(lambda: producers_wait(line))
    await foreign.call("close")
    assert await reason_of(waiting) == "QUEUE_CLOSED"
    assert payloads(await line.take()) == [b"one"]


async def test_after_a_foreign_close_we_drain_what_waits_is_leased_and_is_delayed(line: Line, foreign: Foreign) -> None:
    await foreign.call("create")
    later = message(b"delayed")
    later.delay.CopyFrom(span(1_500))
    await line.put(b"leased", b"waiting", later)
    taken = await line.take_one()
    await foreign.call("close")
    assert (await line.describe()).closed
    with refused("QUEUE_CLOSED", FAILED_PRECONDITION):
        await line.put(b"more")
    assert payloads(await line.take()) == [b"waiting"]
    assert (await line.get()).deliveries == []  # two are leased, one is delayed: not drained
    assert payloads(await line.take(wait_ms=10_000)) == [b"delayed"]
    await line.delay(taken.lease, delay_ms=0)
    again = await line.take_one()
    assert again.message.payload == b"leased"
    await line.ack(again.lease)
    assert (await line.get()).deliveries == []


async def test_a_blocked_foreign_put_does_not_keep_our_get_from_draining(
    line: Line, make_foreign: Callable[..., Foreign]
) -> None:
    await line.create(bound=1)
    await line.put(b"one")
    foreign = make_foreign()
    blocked = await foreign.block("put", b"two")
    # It holds the producer's role, and Close needs that.
    with refused("ROLE_IN_USE", FAILED_PRECONDITION) as said:
        await line.close(wait_ms=200)
    assert said.metadata == {"queue": line.name, "role": "producer", "holder": foreign.uid}
    closing = asyncio.create_task(line.close(wait_ms=10_000))
    assert payloads(await line.take()) == [b"one"]
    await asyncio.wait_for(blocked, 10)
    assert (await asyncio.wait_for(closing, 10)).closed
    assert payloads(await line.take()) == [b"two"]


@pytest.mark.parametrize("is_first_ours", [True, False])
async def test_a_queue_can_be_closed_once_whoever_did_it(line: Line, foreign: Foreign, is_first_ours: bool) -> None:
    await line.create()
    if is_first_ours:
        await line.close()
    else:
        await foreign.call("close")
    with refused("QUEUE_CLOSED", FAILED_PRECONDITION):
        await line.close()
    with pytest.raises(foreign.errors.QueueClosedError):
        await foreign.call("close")


# Delete.


async def test_our_delete_ends_a_blocked_foreign_get(line: Line, foreign: Foreign, keys: Keys) -> None:
    await line.create()
    blocked = await foreign.block("get")
    await line.delete()
    with pytest.raises(foreign.errors.QueueClosedError):
        await asyncio.wait_for(blocked, 10)
    assert keys.all() == set()


async def test_our_delete_ends_a_blocked_foreign_put_and_keeps_nothing_of_it(
    line: Line, make_foreign: Callable[..., Foreign], keys: Keys
) -> None:
    await line.create(bound=1)
    await line.put(b"one")
    blocked = await make_foreign().block("put", b"two")
    await line.delete()
    await asyncio.wait_for(asyncio.wait([blocked]), 10)
    assert keys.all() == set()


async def test_our_delete_ends_two_blocked_foreign_puts_and_two_blocked_foreign_gets(
    line: Line, make_foreign: Callable[..., Foreign], keys: Keys
) -> None:
    await line.create(bound=1)
    await line.put(b"one")
    blocked = [await make_foreign().block("put", b"two"), await make_foreign().block("put", b"three")]
    await line.take()
    await asyncio.wait_for(blocked[0], 10)
    blocked.append(await make_foreign().block("put", b"four"))
    await line.delete()
    await asyncio.wait_for(asyncio.wait(blocked), 10)
    assert keys.all() == set()

    await line.create()
    blocked = [await make_foreign().block("get"), await make_foreign().block("get")]
    await line.delete()
    await asyncio.wait_for(asyncio.wait(blocked), 10)
    assert keys.all() == set()


async def test_our_delete_of_a_closed_and_half_drained_queue_leaves_nothing(
    line: Line, foreign: Foreign, keys: Keys
) -> None:
    await foreign.call("create", 4)
    await line.put(b"one", b"two", b"three")
    await foreign.call("get")
    await line.take()
    await foreign.call("close")
    await line.delete()
    assert keys.all() == set()


async def test_after_our_delete_foreign_calls_say_that_there_is_no_queue(line: Line, foreign: Foreign) -> None:
    await line.create()
    await line.delete()
    for operation in ("get", "get_nowait", "close", "delete", "qsize"):
        with pytest.raises(foreign.errors.QueueDoesNotExistError):
            await foreign.call(operation)
    with pytest.raises(foreign.errors.QueueDoesNotExistError):
        await foreign.call("put", b"x")


async def test_a_foreign_delete_ends_our_waiting_get(line: Line, foreign: Foreign, keys: Keys) -> None:
    await line.create()
    waiting = asyncio.create_task(line.get(wait_ms=20_000))
    await eventually(lambda: consumers_wait(line))
    await foreign.call("delete")
    assert await reason_of(waiting) in {"QUEUE_DELETED", "QUEUE_NOT_FOUND"}
    with refused("QUEUE_NOT_FOUND", NOT_FOUND):
        await line.get()
    assert keys.all() == set()


async def test_a_foreign_delete_ends_our_waiting_put_which_reports_no_success(
    line: Line, foreign: Foreign, keys: Keys
) -> None:
    await line.create(bound=1)
    await line.put(b"one")
    waiting = asyncio.create_task(line.put(b"two", wait_ms=20_000))
    await eventually(lambda: producers_wait(line))
    await foreign.call("delete")
    assert await reason_of(waiting) in {"QUEUE_DELETED", "QUEUE_NOT_FOUND"}
    with refused("QUEUE_NOT_FOUND"):
        await line.put(b"three")
    assert keys.suffixes() == set()


async def test_a_foreign_delete_and_create_ends_our_waiting_calls_or_they_join_the_new_queue(
    line: Line, foreign: Foreign
) -> None:
    await line.create(bound=1)
    await line.put(b"old")
    waiting = asyncio.create_task(line.put(b"waits", wait_ms=3_000))
    await eventually(lambda: producers_wait(line))
    await foreign.call("delete")
    await foreign.call("create", 1)
    try:
        await asyncio.wait_for(waiting, 10)
        expected = [b"waits"]
    except grpc.aio.AioRpcError as error:
        said = error_of(error)
        assert said.reason in {"QUEUE_DELETED", "QUEUE_NOT_FOUND"}
        expected = []
    assert payloads((await line.get(10)).deliveries) == expected


async def test_a_foreign_delete_leaves_no_key_of_ours_once_anybody_asks(
    line: Line, foreign: Foreign, keys: Keys
) -> None:
    await line.create()
    later = message(b"delayed")
    later.delay.CopyFrom(span(60_000))
    framed = message(b"with an id")
    framed.id = "one"
    await line.put(framed, b"two", b"three", later)
    taken = await line.take(2)
    await line.delay(taken[0].lease, delay_ms=0)
    await foreign.call("delete")
    with refused("QUEUE_NOT_FOUND"):
        await line.get()
    assert keys.all() == set()


@pytest.mark.parametrize("role", ["producer", "consumer"])
async def test_our_delete_tells_who_holds_a_role_and_can_be_resumed(line: Line, keys: Keys, role: str) -> None:
    await line.create()
    await line.put(b"one")
    keys.client.rpop(keys[f"{role}_free"])
    keys.client.set(keys[role], "dead client")
    for _ in range(2):
        with refused("ROLE_IN_USE", FAILED_PRECONDITION) as said:
            await line.delete(wait_ms=200)
        assert said.metadata == {"queue": line.name, "role": role, "holder": "dead client"}
    # It is gone for everybody already.
    for call in (line.describe, line.get, lambda: line.put(b"x"), line.close, line.create):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call()
        assert error_of(error.value).reason in {"QUEUE_DELETED", "QUEUE_NOT_FOUND"}
    # The client lived after all.
    keys.client.lpush(keys[f"{role}_free"], 0)
    await line.delete(wait_ms=200)
    assert keys.all() == set()
    assert (await line.create()).created


@pytest.mark.parametrize("is_known", [True, False])
async def test_our_delete_waits_for_a_foreign_client_that_gives_its_role_back(
    line: Line, foreign: Foreign, keys: Keys, is_known: bool
) -> None:
    if is_known:
        await line.create()
    else:  # no step of ours has seen it
        await foreign.call("create")
    keys.client.rpop(keys["consumer_free"])
    deleting = asyncio.create_task(line.delete(wait_ms=10_000))
    await eventually(lambda: not keys.client.exists(keys["bound"]))
    assert not deleting.done()
    keys.client.lpush(keys["consumer_free"], 0)
    await asyncio.wait_for(deleting, 5)
    assert keys.all() == set()


async def test_create_during_a_held_up_delete_says_so(line: Line, keys: Keys) -> None:
    await line.create()
    keys.client.rpop(keys["producer_free"])
    with refused("ROLE_IN_USE"):
        await line.delete(wait_ms=100)
    with refused("QUEUE_DELETED", NOT_FOUND):
        await line.create()
    keys.client.lpush(keys["producer_free"], 0)
    await line.delete()


async def test_our_delete_finishes_what_a_foreign_delete_began(
    line: Line, make_foreign: Callable[..., Foreign], keys: Keys
) -> None:
    await line.create()
    await line.put(b"one")
    keys.client.rpop(keys["consumer_free"])  # somebody holds the role, so the foreign delete blocks
    deleter = make_foreign()
    _ = await deleter.block("delete")
    deleter.hang_up()
    # It died; it had taken the producer's role away for good and removed those two keys.
    keys.client.lpush(keys["consumer_free"], 0)
    await line.delete(wait_ms=1_000)
    assert keys.all() == set()


@pytest.mark.parametrize("starts", ["ours", "theirs"])
async def test_two_deletes_at_once_end_with_nothing_left(line: Line, foreign: Foreign, keys: Keys, starts: str) -> None:
    await line.create()
    await line.put(b"one")
    keys.client.rpop(keys["consumer_free"])
    if starts == "ours":
        ours = asyncio.create_task(line.delete(wait_ms=5_000))
        await eventually(lambda: not keys.client.exists(keys["bound"]))
        keys.client.lpush(keys["consumer_free"], 0)
        await asyncio.wait_for(ours, 10)
        with pytest.raises(foreign.errors.QueueDoesNotExistError):
            await foreign.call("delete")
    else:
        theirs = await foreign.block("delete")
        keys.client.lpush(keys["consumer_free"], 0)
        await asyncio.wait_for(theirs, 10)
        with refused("QUEUE_NOT_FOUND", NOT_FOUND):
            await line.delete()
    assert keys.all() == set()


async def test_a_queue_that_a_foreign_client_deletes_while_we_hold_leases_is_gone_for_them(
    line: Line, foreign: Foreign, keys: Keys
) -> None:

    await line.create()
    await line.put(b"one", b"two")
    taken = await line.take(2)
    await foreign.call("delete")
    assert await line.ack(*leases(taken)) == [GONE, GONE]
    assert keys.all() == set()
