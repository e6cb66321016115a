"""Delete: everybody who waits is told, then no key is left."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from harness import error_of, eventually, refused
from headway.v1 import queue_service_pb2
from wire.calls import (
    FAILED_PRECONDITION,
    GONE,
    INVALID_ARGUMENT,
    NOT_FOUND,
    Keys,
    Line,
    leases,
    message,
    span,
)


async def test_an_unknown_queue_is_not_found(line: Line) -> None:
    with refused("QUEUE_NOT_FOUND", NOT_FOUND) as said:
        await line.delete()
    assert said.metadata == {"queue": line.name}


async def test_a_deleted_queue_is_not_found_and_leaves_no_key(line: Line, keys: Keys) -> None:
    await line.create(bound=5)
    later = message(b"later")
    later.delay.CopyFrom(span(60_000))
    await line.put(b"one", b"two", later)
    await line.take_one()
    await line.delete()
    assert keys.all() == set()
    for call in (line.describe, line.get, line.peek, line.close, line.delete, lambda: line.put(b"x")):
        with refused("QUEUE_NOT_FOUND", NOT_FOUND) as said:
            await call()
        assert said.metadata == {"queue": line.name}


async def test_settling_leases_of_a_deleted_queue_is_gone_and_no_error(line: Line) -> None:
    await line.create()
    await line.put(b"one", b"two", b"three")
    tokens = leases(await line.take(3))
    await line.delete()
    assert await line.ack(*tokens) == [GONE] * 3
    assert [result.settled for result in await line.delay(*tokens, delay_ms=0)] == [GONE] * 3
    assert [result.settled for result in await line.extend(*tokens)] == [GONE] * 3


async def test_a_get_that_settles_needs_a_queue_that_stands(line: Line) -> None:
    await line.create()
    await line.put(b"one")
    lease = (await line.take_one()).lease
    await line.delete()
    with refused("QUEUE_NOT_FOUND", NOT_FOUND):
        await line.get(ack=[lease])


async def test_deleting_ends_every_waiting_get(line: Line, keys: Keys) -> None:
    await line.create()
    waiting = [asyncio.create_task(line.get(wait_ms=20_000)) for _ in range(5)]
    await eventually(lambda: wait(line, consumers=5))
    await line.delete()
    for call in waiting:
        await assert_told_of_the_deletion(call)
    assert keys.all() == set()


async def test_deleting_ends_every_waiting_put_and_none_reports_success(line: Line, keys: Keys) -> None:
    await line.create(bound=1)
    await line.put(b"one")
    waiting = [asyncio.create_task(line.put(b"%d" % n, wait_ms=20_000)) for n in range(5)]
    await eventually(lambda: wait(line, producers=5))
    await line.delete()
    for call in waiting:
        await assert_told_of_the_deletion(call)
    assert keys.all() == set()


async def wait(line: Line, *, consumers: int = 0, producers: int = 0) -> bool:
    counts = (await line.describe()).counts
    return (counts.consumers_waiting, counts.producers_waiting) == (consumers, producers)


async def assert_told_of_the_deletion(call: asyncio.Task[object]) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await asyncio.wait_for(call, 10)
    said = error_of(error.value)
    assert said.code is NOT_FOUND
    assert said.reason in {"QUEUE_DELETED", "QUEUE_NOT_FOUND"}
    assert "queue" in said.metadata


async def test_a_put_that_waits_for_room_is_told_the_queue_was_deleted_not_that_it_never_was(line: Line) -> None:
    await line.create(bound=1)
    await line.put(b"one")
    waiting = asyncio.create_task(line.put(b"two", wait_ms=20_000))
    await eventually(lambda: wait(line, producers=1))
    await line.delete()
    with refused("QUEUE_DELETED", NOT_FOUND) as said:
        await waiting
    assert said.metadata == {"queue": line.name}


async def test_a_get_that_waits_is_told_the_queue_was_deleted_not_that_it_never_was(line: Line) -> None:
    await line.create()
    waiting = asyncio.create_task(line.get(wait_ms=20_000))
    await eventually(lambda: wait(line, consumers=1))
    await line.delete()
    with refused("QUEUE_DELETED", NOT_FOUND) as said:
        await waiting
    assert said.metadata == {"queue": line.name}


async def test_of_many_parallel_deletes_one_deletes(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(*(b"x" for _ in range(500)))
    answers = await asyncio.gather(*(line.delete() for _ in range(20)), return_exceptions=True)
    errors = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
    assert len(errors) == 19
    assert {error_of(error).reason for error in errors} <= {"QUEUE_NOT_FOUND", "QUEUE_DELETED"}
    assert keys.all() == set()


async def test_a_queue_of_many_messages_is_deleted_at_once(line: Line, keys: Keys) -> None:
    await line.create()
    for _ in range(20):
        await line.put(*(b"x" * 100 for _ in range(1_000)))
    await line.delete()
    assert keys.all() == set()


@pytest.mark.parametrize("wait_ms", [-1, 3_600_001])
async def test_a_wait_out_of_its_range_is_refused_and_nothing_is_deleted(line: Line, wait_ms: float) -> None:
    await line.create()
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.delete(wait_ms=wait_ms)
    assert list(said.violations) == ["wait"]
    await line.describe()


@pytest.mark.parametrize("wait_ms", [0, 3_600_000])
async def test_a_wait_up_to_its_bounds_is_taken(line: Line, keys: Keys, wait_ms: float) -> None:
    await line.create()
    await line.delete(wait_ms=wait_ms)
    assert keys.all() == set()


async def test_deleting_with_a_deadline_shorter_than_the_wait_answers_before_the_deadline(
    line: Line, keys: Keys
) -> None:
    await line.create()
    keys.client.rpop(keys["consumer_free"])
    request = queue_service_pb2.DeleteRequest(queue=line.name, wait=span(60_000))
    with refused("ROLE_IN_USE", FAILED_PRECONDITION) as said:
        await line.stub.Delete(request, timeout=1)
    assert said.metadata["role"] == "consumer"
    keys.client.lpush(keys["consumer_free"], 0)
    await line.delete()


async def test_a_caller_that_vanishes_from_a_waiting_delete_leaves_it_resumable(line: Line, keys: Keys) -> None:
    await line.create()
    keys.client.rpop(keys["consumer_free"])
    deleting = asyncio.create_task(line.delete(wait_ms=10_000))
    await eventually(lambda: not keys.client.exists(keys["bound"]))
    deleting.cancel()
    keys.client.lpush(keys["consumer_free"], 0)
    try:
        await line.delete(wait_ms=1_000)
    except grpc.aio.AioRpcError as error:
        assert error.code() is NOT_FOUND  # it was finished in spite of that
    assert keys.all() == set()
