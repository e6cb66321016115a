"""Get: leases from the head of the line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from harness import eventually, refused
from headway.v1 import queue_service_pb2
from wire.calls import ACKED, NOT_FOUND, SLACK_S, Keys, Line, Message, leases, message, now_ms, payloads, span
from wire.conditions import consumers_wait


@pytest.mark.parametrize("wait_ms", [0, 5_000])
async def test_an_unknown_queue_is_not_found(line: Line, wait_ms: float) -> None:
    with refused("QUEUE_NOT_FOUND", NOT_FOUND) as said:
        await line.get(wait_ms=wait_ms)
    assert said.metadata == {"queue": line.name}


async def test_an_empty_queue_gives_an_empty_answer(line: Line) -> None:
    await line.create()
    answer = await line.get(10)
    assert answer == queue_service_pb2.GetResponse()


async def test_messages_are_leased_from_the_head_on(line: Line) -> None:
    await line.create()
    await line.put(*(b"%d" % number for number in range(5)))
    assert payloads((await line.get(2)).deliveries) == [b"0", b"1"]
    assert payloads((await line.get(10)).deliveries) == [b"2", b"3", b"4"]
    assert (await line.counts()).leased == 5


FRAME = 24  # bytes of an element that is more than a payload, beside id, headers and payload
# What is not like the others; where it can be it has their size in the store.
ODD: dict[str, Callable[[int], Message | None]] = {
    "none": lambda _: None,
    "size": lambda _: Message(payload=b"another"),
    "magic": lambda size: Message(payload=b"\xf5HW\x01".ljust(size - FRAME)),
    "magic within": lambda size: Message(payload=b"more than \xf5HW\x01".ljust(size)),
    "header": lambda size: Message(payload=b"x" * (size - FRAME - 8), headers={"a": "b"}),
    "id": lambda size: Message(payload=b"x" * (size - FRAME - 5), id="an id"),
}


@pytest.mark.parametrize("size", [0, 3, 31, 32, 255, 256, 2_048, 2_049, 70_000])
@pytest.mark.parametrize("odd", ODD)
async def test_messages_of_any_size_come_whole_and_in_order(line: Line, size: int, odd: str) -> None:
    await line.create()
    sent = [Message(payload=(b"%03d" % number * size)[:size]) for number in range(30)]
    if (other := ODD[odd](size)) is not None:
        sent[4] = other
    for start in range(0, 30, 10):
        await line.put(*sent[start : start + 10])
    taken = [*await line.take(12), *await line.take(1), *await line.take(17)]
    assert payloads(taken) == [one.payload for one in sent]
    assert [dict(one.message.headers) for one in taken] == [dict(one.headers) for one in sent]
    assert [one.ticket for one in taken] == list(range(1, 31))
    for one, was in zip(taken, sent, strict=True):
        assert one.message.id == was.id if was.id else one.message.id.endswith(f"-{one.ticket}")
        assert one.put_at.ToMilliseconds() + one.waited.ToMilliseconds() == pytest.approx(
            taken[0].put_at.ToMilliseconds() + taken[0].waited.ToMilliseconds(), abs=SLACK_S * 1_000
        )
    assert set(await line.ack(*leases(taken))) == {ACKED}


async def test_without_a_number_one_message_is_leased(line: Line) -> None:
    await line.create()
    await line.put(b"one", b"two")
    answer = await line.stub.Get(queue_service_pb2.GetRequest(queue=line.name), timeout=SLACK_S)
    assert payloads(answer.deliveries) == [b"one"]


async def test_a_delivery_tells_its_deadline_attempt_and_ticket(line: Line, keys: Keys) -> None:
    await line.create(lease=span(5_000))
    await line.put(b"one", b"two")
    before = now_ms(keys.client)
    by_policy, by_request = await line.take_one(), await line.take_one(lease_ms=2_000)
    after = now_ms(keys.client)
    assert before - 1 <= by_policy.lease_expires_at.ToMilliseconds() - 5_000 <= after
    assert before - 1 <= by_request.lease_expires_at.ToMilliseconds() - 2_000 <= after
    assert (by_policy.ticket, by_policy.attempt, by_request.ticket, by_request.attempt) == (1, 1, 2, 1)
    assert not by_policy.message.HasField("time_to_live")
    assert by_policy.message.WhichOneof("available") is None


async def test_tokens_are_long_different_and_say_nothing_of_the_payload(line: Line) -> None:
    await line.create()
    await line.put(*(b"secret" for _ in range(200)))
    tokens = leases(await line.take(200))
    assert len(set(tokens)) == 200
    assert all(22 <= len(token) <= 256 and token.isprintable() and "secret" not in token for token in tokens)


async def test_a_lease_of_a_later_attempt_is_another_lease(line: Line) -> None:
    await line.create()
    await line.put(b"one")
    first = await line.take_one()
    await line.delay(first.lease, delay_ms=0)
    second = await line.take_one()
    assert (second.attempt, second.ticket, second.message.id) == (2, 1, first.message.id)
    assert second.lease != first.lease


async def test_the_answer_carries_at_most_so_many_bytes_and_leases_no_more(line: Line) -> None:
    await line.create()
    sent = [bytes([number]) * 1_000_000 for number in range(6)]
    for payload in sent:
        await line.put(payload)
    first = await line.get(10)
    assert 1 <= len(first.deliveries) <= 3
    assert (await line.counts()).leased == len(first.deliveries)
    got = payloads(first.deliveries)
    while len(got) < 6:
        got += payloads((await line.get(10)).deliveries)
    assert got == sent


async def test_a_queue_with_a_limit_leases_no_more_than_its_slots(line: Line) -> None:
    await line.create(limit=2)
    await line.put(b"1", b"2", b"3", b"4")
    taken = await line.take(2)
    assert (await line.get(5)).deliveries == []
    await line.ack(taken[0].lease)
    assert payloads((await line.get(5)).deliveries) == [b"3"]


async def test_a_slot_that_becomes_free_serves_who_waits(line: Line) -> None:
    await line.create(limit=1)
    await line.put(b"1", b"2")
    first = await line.take_one()
    waiting = asyncio.create_task(line.get(wait_ms=20_000))
    await eventually(lambda: consumers_wait(line, 1))
    await line.ack(first.lease)
    assert payloads((await asyncio.wait_for(waiting, 10)).deliveries) == [b"2"]


async def test_who_settles_in_the_same_call_keeps_the_slot(line: Line) -> None:
    await line.create(limit=1)
    await line.put(b"1", b"2", b"3")
    first = await line.take_one()
    waiting = asyncio.create_task(line.get(wait_ms=20_000))
    await eventually(lambda: consumers_wait(line, 1))
    answer = await line.get(ack=[first.lease])
    assert payloads(answer.deliveries) == [b"2"]
    assert not waiting.done()
    await line.ack(answer.deliveries[0].lease)
    assert payloads((await asyncio.wait_for(waiting, 10)).deliveries) == [b"3"]


async def test_many_racing_gets_lease_each_message_once(line: Line) -> None:
    await line.create()
    await line.put(*(b"%d" % number for number in range(200)))
    answers = await asyncio.gather(*(line.get(3) for _ in range(100)))
    got = [payload for answer in answers for payload in payloads(answer.deliveries)]
    assert sorted(got) == sorted(b"%d" % number for number in range(200))


async def test_a_message_with_headers_is_peeked_got_and_given_back_unchanged(line: Line) -> None:
    await line.create()
    sent = message(b"payload")
    sent.id = "one"
    sent.headers["a"] = "b"
    await line.put(sent)
    for _ in range(3):
        delivery = await line.take_one()
        assert (delivery.message.id, dict(delivery.message.headers)) == ("one", {"a": "b"})
        await line.delay(delivery.lease, delay_ms=0)
    [seen] = await line.peek()
    assert (seen.message.id, seen.message.payload, dict(seen.message.headers)) == ("one", b"payload", {"a": "b"})
