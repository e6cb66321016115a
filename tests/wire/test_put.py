"""Put: batches at the tail of the line, at once or later."""

from __future__ import annotations

import pytest

from harness import eventually, refused
from headway.v1 import admin_service_pb2
from wire.calls import NOT_FOUND, SLACK_S, Keys, Line, Message, delayed, instant, message, named, now_ms, payloads, span

# What joins the line.


async def test_an_unknown_queue_is_not_found(line: Line) -> None:
    with refused("QUEUE_NOT_FOUND", NOT_FOUND) as said:
        await line.put(b"one", wait_ms=5_000)
    assert said.metadata == {"queue": line.name}


async def test_each_message_of_a_batch_gets_the_next_ticket_and_position(line: Line) -> None:
    await line.create()
    first = (await line.put(b"one", b"two")).results
    second = (await line.put(b"three")).results
    assert [(result.ticket, result.position) for result in (*first, *second)] == [(1, 1), (2, 2), (3, 3)]
    await line.take(2)
    [third] = (await line.put(b"four")).results
    assert (third.ticket, third.position) == (4, 2)
    assert payloads(await line.take(2)) == [b"three", b"four"]


async def test_messages_without_an_id_get_one_of_their_own(line: Line) -> None:
    await line.create()
    results = (await line.put(*(b"same" for _ in range(10)))).results
    ids = [result.id for result in results]
    assert len(set(ids)) == 10
    assert all(one.startswith("~") for one in ids)
    assert [seen.message.id for seen in await line.peek(10)] == ids
    assert [delivery.message.id for delivery in await line.take(10)] == ids


async def test_an_id_and_headers_travel_with_the_message(line: Line) -> None:
    await line.create()
    sent = named("order-1", b"\0\xff")
    sent.headers.update({"colour": "rot", "größe": "très grand \U0001f422", "empty": "", "a": "line\nbreak\0"})
    await line.put(sent)
    received = (await line.take_one()).message
    assert (received.id, received.payload, dict(received.headers)) == (sent.id, sent.payload, dict(sent.headers))


@pytest.mark.parametrize("payload", [b"", b"\0", b"\xf5HW\x01", b"\xf5HW\x01" + bytes(20), bytes(range(256))], ids=repr)
@pytest.mark.parametrize("has_id", [True, False])
async def test_any_payload_arrives_byte_for_byte(line: Line, payload: bytes, has_id: bool) -> None:
    await line.create()
    await line.put(named("one", payload) if has_id else payload)
    assert payloads(await line.take()) == [payload]


async def test_when_a_message_was_put_is_told_with_its_delivery(line: Line, keys: Keys) -> None:
    await line.create()
    before = now_ms(keys.client)
    await line.put(named("one"), b"two")
    after = now_ms(keys.client)
    exact, bare = await line.take(2)
    assert before - 1 <= exact.put_at.ToMilliseconds() <= after
    assert before - 101 <= bare.put_at.ToMilliseconds() <= after + 100
    assert exact.waited.ToMilliseconds() >= 0


# Later messages.


async def test_a_delayed_message_is_not_in_the_line_until_it_is_due(line: Line, keys: Keys) -> None:
    await line.create()
    [result] = (await line.put(delayed(1_500))).results
    assert (result.ticket, result.position) == (0, 0)
    assert result.id.startswith("~")
    counts = await line.counts()
    assert (counts.length, counts.delayed) == (0, 1)
    assert (await line.get()).deliveries == []
    assert await line.peek() == []
    await eventually(lambda: keys.length == 1)
    delivery = await line.take_one()
    assert (delivery.message.payload, delivery.message.id, delivery.attempt) == (b"later", result.id, 1)
    assert delivery.waited.ToMilliseconds() >= 1_500


async def test_messages_fall_due_in_due_order_with_ties_in_put_order(line: Line, keys: Keys) -> None:
    await line.create()
    at = int(now_ms(keys.client)) + 2_000
    await line.put(
        delayed(2_500, b"last"),
        Message(payload=b"tie 1", not_before=instant(at)),
        delayed(1_000, b"first"),
        Message(payload=b"tie 2", not_before=instant(at)),
        Message(payload=b"tie 3", not_before=instant(at)),
    )
    await line.put(b"now")
    await eventually(lambda: keys.length == 6)
    assert payloads(await line.take(6)) == [b"now", b"first", b"tie 1", b"tie 2", b"tie 3", b"last"]


@pytest.mark.parametrize("when", ["zero delay", "past instant", "before 1970"])
async def test_the_past_is_now(line: Line, when: str) -> None:
    await line.create()
    sent = message(b"now")
    if when == "zero delay":
        sent.delay.CopyFrom(span(0))
    else:
        sent.not_before.CopyFrom(instant(1_000 if when == "past instant" else -1_000))
    [result] = (await line.put(sent)).results
    assert (result.ticket, result.position) == (1, 1)


async def test_a_waiting_get_is_given_a_message_that_falls_due(line: Line) -> None:
    await line.create()
    await line.put(delayed(300))
    delivery = await line.take_one(wait_ms=10_000)
    assert 300 <= delivery.waited.ToMilliseconds() < 3_000


async def test_a_delayed_message_needs_no_room(line: Line) -> None:
    await line.create(bound=1)
    await line.put(b"one")
    assert not (await line.put(delayed(60_000))).results[0].HasField("error")
    assert (await line.counts()).delayed == 1


# Beside other things.


async def test_a_paused_queue_takes_messages(line: Line) -> None:
    await line.create()
    assert line.admin is not None
    await line.admin.Pause(admin_service_pb2.PauseRequest(queue=line.name), timeout=SLACK_S)
    assert (await line.put(b"one")).results[0].position == 1


async def test_positions_count_messages_that_came_back(line: Line) -> None:
    await line.create()
    await line.put(b"one", b"two")
    await line.delay((await line.take_one()).lease, delay_ms=0)
    [result] = (await line.put(b"three")).results
    assert (result.ticket, result.position) == (3, 3)
