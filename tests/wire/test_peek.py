"""Peek: looks at waiting messages without touching them."""

from __future__ import annotations

import pytest

from harness import refused
from wire.calls import INVALID_ARGUMENT, NOT_FOUND, Keys, Line, Message, now_ms, payloads, span

MAX_BATCH = 1_000


async def test_an_unknown_queue_is_not_found(line: Line) -> None:
    with refused("QUEUE_NOT_FOUND", NOT_FOUND) as said:
        await line.peek()
    assert said.metadata == {"queue": line.name}


async def test_an_empty_queue_shows_nothing(line: Line) -> None:
    await line.create()
    assert await line.peek(10) == []


async def test_messages_are_shown_from_the_head_on_with_their_places(line: Line) -> None:
    await line.create()
    await line.put(b"0", b"1", b"2", b"3")
    await line.take_one()
    seen = await line.peek(2)
    assert [(one.message.payload, one.ticket, one.position) for one in seen] == [(b"1", 2, 1), (b"2", 3, 2)]


async def test_without_a_number_one_message_is_shown(line: Line) -> None:
    await line.create()
    await line.put(b"0", b"1")
    assert [one.message.payload for one in await line.peek(0)] == [b"0"]


@pytest.mark.parametrize(
    ("from_position", "expected"),
    [(0, [b"0", b"1"]), (1, [b"0", b"1"]), (2, [b"1", b"2"]), (4, [b"3"]), (5, []), (2**53, []), (2**64 - 1, [])],
)
async def test_it_begins_where_it_is_told(line: Line, from_position: int, expected: list[bytes]) -> None:
    await line.create()
    await line.put(b"0", b"1", b"2", b"3")
    seen = await line.peek(2, from_position=from_position)
    assert [one.message.payload for one in seen] == expected
    assert [one.position for one in seen] == [max(from_position, 1) + at for at in range(len(expected))]


async def test_what_came_back_is_shown_first_with_its_failures(line: Line) -> None:
    await line.create()
    await line.put(b"0", b"1", b"2", b"3")
    taken = await line.take(3)
    await line.delay(taken[2].lease, delay_ms=0, reason="bad luck")
    await line.delay(taken[0].lease, delay_ms=0)
    seen = await line.peek(10)
    assert [(one.message.payload, one.ticket, one.position, one.failures) for one in seen] == [
        (b"0", 1, 1, 1),
        (b"2", 3, 2, 1),
        (b"3", 4, 3, 0),
    ]
    assert seen[1].last_error == "bad luck"
    assert seen[2].last_error == ""


async def test_ids_headers_and_put_times_are_shown_as_a_delivery_tells_them(line: Line, keys: Keys) -> None:
    await line.create()
    sent = Message(id="one", payload=b"x")
    sent.headers["a"] = "b"
    before = now_ms(keys.client)
    await line.put(sent, b"bare")
    seen = await line.peek(2)
    assert (seen[0].message.id, dict(seen[0].message.headers)) == ("one", {"a": "b"})
    assert seen[0].put_at.ToMilliseconds() >= before - 1
    deliveries = await line.take(2)
    assert [one.message.id for one in seen] == [delivery.message.id for delivery in deliveries]
    assert [one.put_at for one in seen] == [delivery.put_at for delivery in deliveries]


async def test_payloads_can_be_left_out(line: Line) -> None:
    await line.create()
    sent = Message(id="one", payload=b"x" * 1_000)
    sent.headers["a"] = "b"
    await line.put(sent, b"bare")
    seen = await line.peek(2, without_payloads=True)
    assert [one.message.payload for one in seen] == [b"", b""]
    assert (seen[0].message.id, dict(seen[0].message.headers)) == ("one", {"a": "b"})


async def test_looking_changes_nothing_in_the_store(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(b"0", b"1", b"2")
    await line.delay((await line.take_one()).lease, delay_ms=0)
    before = {key: keys.client.dump(key) for key in keys.all()}
    for _ in range(3):
        await line.peek(10)
    assert {key: keys.client.dump(key) for key in keys.all()} == before
    assert payloads(await line.take(3)) == [b"0", b"1", b"2"]


async def test_neither_leased_nor_delayed_messages_are_shown(line: Line) -> None:
    await line.create()
    later = Message(payload=b"later", delay=span(600_000))
    await line.put(b"leased", later, b"waiting")
    await line.take_one()
    assert [one.message.payload for one in await line.peek(10)] == [b"waiting"]


async def test_what_a_foreign_client_took_and_put_is_seen_at_once(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(b"0", b"1")
    keys.client.rpop(keys[""])
    keys.client.lpush(keys[""], b"2")
    assert [(one.message.payload, one.position) for one in await line.peek(10)] == [(b"1", 1), (b"2", 2)]


async def test_an_answer_carries_at_most_so_many_bytes_but_at_least_one_message(line: Line) -> None:
    await line.create()
    for number in range(5):
        await line.put(bytes([number]) * 1_000_000)
    seen = await line.peek(5)
    assert 1 <= len(seen) <= 3
    assert [one.message.payload[0] for one in seen] == list(range(len(seen)))


async def test_last_errors_count_for_the_bytes_of_an_answer(line: Line) -> None:
    await line.create()
    await line.put(*[b"x" * 3_145] * MAX_BATCH)  # 3 MiB without them
    await line.delay(*(one.lease for one in await line.take(MAX_BATCH)), delay_ms=0, reason="r" * 1_024)
    seen = await line.peek(MAX_BATCH)
    assert len(seen) == 3 * 2**20 // (3_145 + 1_024)
    assert sum(one.ByteSize() for one in seen) < 4 * 2**20  # what clients' libraries take unless told otherwise


@pytest.mark.parametrize("count", [MAX_BATCH + 1, 4_294_967_295])
async def test_more_than_the_largest_batch_is_refused(line: Line, count: int) -> None:
    await line.create()
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.peek(count)
    assert list(said.violations) == ["max_messages"]


async def test_the_largest_batch_is_shown(line: Line) -> None:
    await line.create()
    await line.put(*(b"%d" % number for number in range(MAX_BATCH)))
    assert len(await line.peek(MAX_BATCH)) == MAX_BATCH


async def test_a_closed_and_a_paused_queue_can_be_looked_at(line: Line) -> None:
    await line.create()
    await line.put(b"one")
    await line.close()
    assert [one.message.payload for one in await line.peek()] == [b"one"]


async def test_messages_of_a_foreign_queue_have_no_ids_before_something_is_written_to_it(
    line: Line, keys: Keys
) -> None:
    keys.create(b"theirs")
    [seen] = await line.peek()
    assert (seen.message.id, seen.message.payload, seen.ticket, seen.position) == ("", b"theirs", 1, 1)
    await line.put(b"ours")
    [seen] = await line.peek()
    assert seen.message.id
    [withdrawn] = await line.withdraw(seen.message.id)
    assert not withdrawn.HasField("error")
