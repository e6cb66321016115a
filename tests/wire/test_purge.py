"""Purge: removes what waits or is delayed, and on request the dead; what is leased stays with its holder."""

from __future__ import annotations

import asyncio

from harness import eventually, refused
from headway.v1 import admin_service_pb2, queue_pb2
from wire.calls import ACKED, FAILED_PRECONDITION, NOT_FOUND, RELEASED, SLACK_S, Keys, Line, Message, payloads, span
from wire.conditions import producers_wait


async def purge(line: Line, *, dead: bool = False) -> tuple[int, int, int]:
    assert line.admin is not None
    request = admin_service_pb2.PurgeRequest(queue=line.name, dead=dead)
    answer = await line.admin.Purge(request, timeout=SLACK_S)
    return answer.waiting, answer.delayed, answer.dead


async def fill(line: Line) -> str:
    """Two waiting, one of them back; two delayed; one dead; one leased, whose lease is returned."""
    await line.create(retry=queue_pb2.Retry(max_attempts=2))
    await line.put(
        Message(id="dead", payload=b"dead"), b"leased", b"back", b"fresh", *(later(number) for number in range(2))
    )
    dead, leased, back = await line.take(3)
    await line.delay(back.lease, delay_ms=0)
    await line.delay(dead.lease, delay_ms=0)
    await line.delay((await line.take_one()).lease, delay_ms=0)
    counts = await line.counts()
    assert (counts.length, counts.delayed, counts.dead, counts.leased) == (2, 2, 1, 1)
    return leased.lease


def later(number: int) -> Message:
    return Message(id=f"later {number}", payload=b"x", delay=span(600_000))


async def test_an_unknown_queue_is_not_found(line: Line) -> None:
    with refused("QUEUE_NOT_FOUND", NOT_FOUND) as said:
        await purge(line)
    assert said.metadata == {"queue": line.name}


async def test_an_empty_queue_has_nothing_to_remove(line: Line) -> None:
    await line.create()
    assert await purge(line, dead=True) == (0, 0, 0)


async def test_what_waits_and_is_delayed_is_removed_and_counted(line: Line, keys: Keys) -> None:
    lease = await fill(line)
    assert await purge(line) == (2, 2, 0)
    counts = await line.counts()
    assert (counts.length, counts.delayed, counts.dead, counts.leased, counts.returned) == (0, 0, 1, 1, 0)
    assert counts.withdrawn == 4
    assert keys.length == 0
    assert [result.settled for result in await line.delay(lease, delay_ms=0)] == [RELEASED]
    assert payloads(await line.take()) == [b"leased"]


async def test_the_dead_are_removed_on_request(line: Line) -> None:
    lease = await fill(line)
    assert await purge(line, dead=True) == (2, 2, 1)
    counts = await line.counts()
    assert (counts.length, counts.delayed, counts.dead, counts.leased) == (0, 0, 0, 1)
    assert await line.ack(lease) == [ACKED]


async def test_purging_again_removes_nothing(line: Line) -> None:
    await fill(line)
    await purge(line, dead=True)
    assert await purge(line, dead=True) == (0, 0, 0)


async def test_thousands_of_messages_are_removed(line: Line) -> None:
    await line.create()
    for _ in range(12):
        await line.put(*(b"x" for _ in range(1_000)))
    assert await purge(line) == (12_000, 0, 0)
    assert (await line.counts()).length == 0


async def test_a_purge_makes_room_for_waiting_producers(line: Line, keys: Keys) -> None:
    await line.create(bound=2)
    await line.put(b"1", b"2")
    waiting = asyncio.create_task(line.put(b"3", wait_ms=20_000))
    await eventually(lambda: producers_wait(line))
    await purge(line)
    [result] = (await asyncio.wait_for(waiting, 10)).results
    assert result.position == 1
    assert result.ticket == 3
    assert keys.is_not_full


async def test_tickets_go_on_after_a_purge(line: Line) -> None:
    await line.create()
    await line.put(b"1", b"2", b"3")
    await purge(line)
    [result] = (await line.put(b"4")).results
    assert (result.ticket, result.position) == (4, 1)


async def test_a_closed_queue_is_drained_by_a_purge(line: Line) -> None:
    await line.create()
    await line.put(b"1", later(1))
    await line.close()
    await purge(line)
    with refused("QUEUE_DRAINED", FAILED_PRECONDITION):
        await line.get()


async def test_a_purge_during_the_consumers_absence_of_role_says_who_holds_it(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(b"1")
    keys.client.rpop(keys["consumer_free"])
    keys.client.set(keys["consumer"], "somebody")
    with refused("ROLE_IN_USE", FAILED_PRECONDITION) as said:
        await purge(line)
    assert said.metadata == {"queue": line.name, "role": "consumer", "holder": "somebody"}
    assert keys.length == 1
    keys.client.lpush(keys["consumer_free"], 0)
