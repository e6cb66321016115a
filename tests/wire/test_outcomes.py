"""How a message ended is remembered for a while, and told to whoever comes too late."""

from __future__ import annotations

import pytest

from harness import eventually
from headway.v1 import error_reason_pb2, queue_pb2
from wire.calls import ACKED, ALREADY_ACKED, Keys, Line, Message, span
from wire.operators import ONE_ATTEMPT, all_dead, assert_sound, bury, redrive
from wire.test_purge import purge

ENDS = ["DONE", "DEAD", "WITHDRAWN", "EXPIRED"]


async def bring_to_an_end(line: Line, message_id: str, end: str) -> None:
    """Puts a message and ends it in one of the four ways."""
    if end == "EXPIRED":
        await line.put(Message(id=message_id, payload=b"x", time_to_live=span(20)))
        await eventually(lambda: is_empty(line))
        return
    await line.put(Message(id=message_id, payload=b"x"))
    if end == "WITHDRAWN":
        await line.withdraw(message_id)
    elif end == "DONE":
        assert await line.ack((await line.take_one()).lease, result=b"42") == [ACKED]
    else:
        await line.delay((await line.take_one()).lease, delay_ms=0)


async def is_empty(line: Line) -> bool:
    counts = await line.counts()
    return not (counts.length or counts.delayed or counts.leased)


async def told(line: Line, message_id: str) -> tuple[str, str]:
    """What Withdraw says: the reason, and the outcome in its metadata."""
    [result] = await line.withdraw(message_id)
    assert not result.withdrawn
    reason = error_reason_pb2.ErrorReason.Name(result.error.reason).removeprefix("ERROR_REASON_")
    return reason, result.error.metadata.get("outcome", "")


@pytest.mark.parametrize("end", ENDS)
async def test_whoever_comes_too_late_is_told_how_it_ended(line: Line, end: str) -> None:
    await line.create(retry=ONE_ATTEMPT)
    await bring_to_an_end(line, "a", end)
    for _ in range(2):
        assert await told(line, "a") == ("MESSAGE_FINISHED", end)
    await assert_sound(line)


@pytest.mark.parametrize("end", ["DONE", "WITHDRAWN", "EXPIRED"])
async def test_it_is_forgotten_after_remember_and_the_window(line: Line, end: str) -> None:
    await line.create(retry=ONE_ATTEMPT, remember=span(200), dedupe_window=span(200))
    await bring_to_an_end(line, "a", end)
    await eventually(lambda: is_unknown(line, "a"))
    await assert_sound(line)


async def is_unknown(line: Line, message_id: str) -> bool:
    return (await told(line, message_id))[0] == "MESSAGE_NOT_FOUND"


async def test_a_dead_message_is_dead_for_as_long_as_it_lies_there(line: Line) -> None:
    await line.create(retry=ONE_ATTEMPT, remember=span(0), dedupe_window=span(0))
    await bury(line, Message(id="a"))
    assert await told(line, "a") == ("MESSAGE_FINISHED", "DEAD")
    assert await told(line, (await all_dead(line))[0].message.id) == ("MESSAGE_FINISHED", "DEAD")


async def test_a_message_put_back_from_the_dead_has_no_outcome_any_more(line: Line) -> None:
    await line.create(retry=ONE_ATTEMPT)
    await bury(line, Message(id="a"))
    await redrive(line)
    [result] = await line.withdraw("a")
    assert result.withdrawn
    assert await told(line, "a") == ("MESSAGE_FINISHED", "WITHDRAWN")


async def test_a_message_that_a_foreign_client_took_is_finished_in_an_unknown_way(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(Message(id="a"), Message(id="b"))
    # As a stock client does it, which holds the role meanwhile.
    client = keys.client
    client.lpop(keys["consumer_free"])
    client.rpop(keys[""])
    client.incr(keys["stats:consumed_messages"])
    client.rpush(keys["consumer_free"], "1")
    assert await told(line, "a") == ("MESSAGE_FINISHED", "UNKNOWN")
    assert (await line.counts()).taken_by_foreign == 1
    assert (await line.withdraw("b"))[0].withdrawn


async def test_a_purged_message_counts_as_withdrawn(line: Line) -> None:
    await line.create()
    await line.put(Message(id="a"))
    await purge(line)
    reason, outcome = await told(line, "a")
    assert (reason, outcome) in {("MESSAGE_FINISHED", "WITHDRAWN"), ("MESSAGE_NOT_FOUND", "")}


async def test_a_repeated_ack_keeps_the_first_result(line: Line) -> None:
    await line.create()
    await line.put(Message(id="a"))
    lease = (await line.take_one()).lease
    assert await line.ack(lease, result=b"first") == [ACKED]
    assert await line.ack(lease, result=b"second") == [ALREADY_ACKED]
    assert await told(line, "a") == ("MESSAGE_FINISHED", "DONE")


@pytest.mark.parametrize("size", [0, 1, 4_096])
async def test_a_result_up_to_4096_bytes_is_taken(line: Line, size: int) -> None:
    await line.create()
    await line.put(Message(id="a"))
    assert await line.ack((await line.take_one()).lease, result=b"\x00" * size) == [ACKED]
    await assert_sound(line)


async def test_memory_for_outcomes_is_bounded_by_time(line: Line, keys: Keys) -> None:
    await line.create(remember=span(100), dedupe_window=span(100), retry=queue_pb2.Retry())
    empty = entries(keys)
    for start in range(0, 2_000, 500):
        await line.put(*(Message(id=f"m{start + number}") for number in range(500)))
        await line.ack(*(one.lease for one in await line.take(500)), result=b"r")
    await eventually(lambda: forgets(line, keys, empty), within=15)


async def forgets(line: Line, keys: Keys, empty: int) -> bool:
    await line.put(b"x")
    await line.ack((await line.take_one()).lease)
    return entries(keys) <= empty + 20


def entries(keys: Keys) -> int:
    """How many entries all keys of the queue have together."""
    lengths = {b"hash": "hlen", b"zset": "zcard", b"list": "llen", b"set": "scard", b"string": "strlen"}
    count = 0
    for key in keys.all():
        kind = keys.client.type(key)
        if kind in lengths and kind != b"string":
            count += int(getattr(keys.client, lengths[kind])(key))
    return count
