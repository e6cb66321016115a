"""Describe: everything about one queue, as of one instant."""

from __future__ import annotations

import asyncio

from harness import eventually, refused
from headway.v1 import queue_pb2, queue_service_pb2
from wire.calls import NOT_FOUND, Keys, Line, leases, message, now_ms, span
from wire.conditions import consumers_wait, producers_wait


async def test_an_unknown_queue_is_not_found(line: Line) -> None:
    with refused("QUEUE_NOT_FOUND", NOT_FOUND) as said:
        await line.describe()
    assert said.metadata == {"queue": line.name}


async def test_a_foreign_queue_has_no_generation_before_something_is_written_to_it(line: Line, keys: Keys) -> None:
    keys.create(b"theirs")
    listed = await line.stub.List(queue_service_pb2.ListRequest(prefix=line.name), timeout=5)
    looks = [await line.describe(), await line.describe(), *listed.queues]
    assert [told.generation for told in looks] == ["", "", ""]
    await line.put(b"ours")
    begun, again = await line.describe(), await line.describe()
    assert begun.generation
    assert (again.generation, again.created_at) == (begun.generation, begun.created_at)


async def test_each_message_is_counted_in_the_one_state_it_is_in(line: Line) -> None:
    await line.create(retry=queue_pb2.Retry(max_attempts=1))
    later = message(b"later")
    later.delay.CopyFrom(span(600_000))
    await line.put(b"0", b"1", b"2", b"3", b"4", b"5", later)
    taken = await line.take(4)
    await line.ack(taken[0].lease)
    await line.delay(taken[1].lease, delay_ms=0)  # dead
    await line.delay(taken[2].lease, delay_ms=0, keep_attempt=True)  # returned
    counts = await line.counts()
    states = (counts.length, counts.leased, counts.delayed, counts.dead, counts.returned, counts.acked)
    assert states == (3, 1, 1, 1, 1, 1)
    assert (counts.accepted, counts.produced_messages, counts.produced_bytes) == (7, 7, 11)
    assert (counts.consumed_messages, counts.consumed_bytes) == (4, 4)
    assert (counts.expired, counts.withdrawn, counts.taken_by_foreign) == (0, 0, 0)


async def test_those_who_wait_are_counted(line: Line) -> None:
    await line.create(bound=1)
    await line.put(b"one")
    putting = [asyncio.create_task(line.put(b"more", wait_ms=20_000)) for _ in range(3)]
    await eventually(lambda: producers_wait(line, 3))
    await line.take()
    await eventually(lambda: producers_wait(line, 2))
    await line.take(2 - 1)
    await line.take(wait_ms=5_000)
    await asyncio.gather(*putting)
    await line.take()
    getting = [asyncio.create_task(line.get(wait_ms=20_000)) for _ in range(2)]
    await eventually(lambda: consumers_wait(line, 2))
    await line.put(b"for the first")
    await line.put(b"for the second", wait_ms=5_000)
    await asyncio.gather(*getting)
    assert await consumers_wait(line, 0)
    assert await producers_wait(line, 0)


async def test_the_oldest_age_is_that_of_the_message_at_the_head(line: Line, keys: Keys) -> None:
    await line.create()
    assert not (await line.counts()).HasField("oldest_age")
    before = now_ms(keys.client)
    framed = message(b"one")
    framed.id = "one"
    await line.put(framed, b"two")

    async def has_aged() -> bool:
        return (await line.counts()).oldest_age.ToMilliseconds() >= 200

    await eventually(has_aged)
    age = (await line.counts()).oldest_age.ToMilliseconds()
    assert age <= now_ms(keys.client) - before + 1
    taken = await line.take(2)
    assert not (await line.counts()).HasField("oldest_age")
    await line.delay(taken[0].lease, delay_ms=0)
    assert (await line.counts()).oldest_age.ToMilliseconds() >= age


async def test_rates_rise_with_traffic_and_are_averages_of_about_a_minute(line: Line) -> None:
    await line.create()
    quiet = await line.counts()
    assert (quiet.put_rate, quiet.ack_rate) == (0, 0)
    await line.put(*(b"x" for _ in range(600)))
    counts = await line.counts()
    assert 5 <= counts.put_rate <= 15
    assert counts.ack_rate == 0
    await line.ack(*leases(await line.take(600)))
    assert 5 <= (await line.counts()).ack_rate <= 15


async def test_describing_changes_nothing_in_the_store(line: Line, keys: Keys) -> None:
    await line.create(bound=2)
    await line.put(b"one")
    before = {key: keys.client.dump(key) for key in keys.all()}
    for _ in range(3):
        await line.describe()
    assert {key: keys.client.dump(key) for key in keys.all()} == before


async def test_the_generation_is_the_same_all_life_long(line: Line) -> None:
    generation = (await line.create()).queue.generation
    await line.put(b"one")
    await line.ack((await line.take_one()).lease)
    assert (await line.close()).generation == generation
    assert (await line.describe()).generation == generation
