"""Put: batches at the tail of the line, within the bound, in the order of the producers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import pytest

from harness import ServiceProcess, error_of, eventually, refused
from headway.v1 import admin_service_pb2, error_reason_pb2, message_pb2, queue_service_pb2, queue_service_pb2_grpc
from wire.calls import (
    ALREADY_EXISTS,
    FAILED_PRECONDITION,
    INVALID_ARGUMENT,
    NOT_FOUND,
    RESOURCE_EXHAUSTED,
    SLACK_S,
    UNIMPLEMENTED,
    Keys,
    Line,
    Message,
    instant,
    leases,
    message,
    now_ms,
    payloads,
    span,
)

MAX_BATCH = 1_000
MAX_BYTES = 1024 * 1024
DAY_MS = 24 * 3_600 * 1_000
KEEP = message_pb2.ON_DUPLICATE_KEEP


def named(message_id: str, payload: bytes = b"payload") -> message_pb2.Message:
    return Message(id=message_id, payload=payload)


def delayed(milliseconds: float, payload: bytes = b"later") -> message_pb2.Message:
    return Message(payload=payload, delay=span(milliseconds))


async def producers_wait(line: Line, count: int) -> bool:
    return (await line.describe()).counts.producers_waiting == count


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


# Sizes.


@pytest.mark.parametrize("count", [0, MAX_BATCH + 1])
async def test_an_empty_or_too_large_batch_is_refused(line: Line, count: int) -> None:
    await line.create()
    reason = "TOO_LARGE" if count else "FIELD_INVALID"
    with refused(reason, INVALID_ARGUMENT) as said:
        await line.put(*(b"x" for _ in range(count)))
    assert list(said.violations) == ["messages"]
    if count:
        assert said.metadata == {"field": "messages", "limit": str(MAX_BATCH), "size": str(count)}
    assert (await line.counts()).accepted == 0


async def test_the_largest_batch_is_taken_whole_and_in_order(line: Line) -> None:
    await line.create()
    sent = [b"%d" % number for number in range(MAX_BATCH)]
    results = (await line.put(*sent)).results
    assert [result.position for result in results] == list(range(1, MAX_BATCH + 1))
    assert payloads(await line.take(MAX_BATCH)) == sent


@pytest.mark.parametrize("size", [MAX_BYTES - 1, MAX_BYTES])
async def test_a_message_up_to_the_largest_size_is_taken(line: Line, size: int) -> None:
    await line.create()
    payload = b"x" * size
    await line.put(payload)
    assert payloads(await line.take()) == [payload]


async def test_a_message_above_the_largest_size_is_refused_with_the_whole_batch(line: Line) -> None:
    await line.create()
    with refused("TOO_LARGE", INVALID_ARGUMENT) as said:
        await line.put(b"fits", b"x" * (MAX_BYTES + 1))
    assert said.metadata == {"field": "messages[1]", "limit": str(MAX_BYTES), "size": str(MAX_BYTES + 1)}
    assert (await line.counts()).accepted == 0


async def test_id_and_headers_count_for_a_messages_size(line: Line) -> None:
    await line.create()
    fits = named("12345", b"x" * (MAX_BYTES - 10))
    fits.headers["ab"] = "cde"
    await line.put(fits)
    fits.id = "123456"
    with refused("TOO_LARGE", INVALID_ARGUMENT) as said:
        await line.put(fits)
    assert said.metadata["size"] == str(MAX_BYTES + 1)


async def test_a_request_above_the_largest_size_is_refused(line: Line) -> None:
    await line.create()
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await line.put(*(b"x" * MAX_BYTES for _ in range(9)))
    assert error_of(error.value).code in {INVALID_ARGUMENT, RESOURCE_EXHAUSTED}
    if error_of(error.value).code is INVALID_ARGUMENT:
        assert error_of(error.value).reason == "TOO_LARGE"
    assert (await line.counts()).accepted == 0


# Fields.


@pytest.mark.parametrize(
    "bad",
    ["~mine", "~", "a\nb", "\0", "\x7f", "\x85", "a" * 201, "é" * 100 + "a"],
    ids=ascii,
)
async def test_an_id_that_is_no_id_is_refused(line: Line, bad: str) -> None:
    await line.create()
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.put(b"fine", named(bad))
    assert list(said.violations) == ["messages[1].id"]
    assert (await line.counts()).accepted == 0


@pytest.mark.parametrize("good", ["a", "a" * 200, "é" * 100, "\U0001f422" * 50, "a~", " ", "*", "{}", ":x:"], ids=ascii)
async def test_any_other_text_is_an_id(line: Line, good: str) -> None:
    await line.create()
    assert (await line.put(named(good))).results[0].id == good
    with refused("DUPLICATE_MESSAGE"):
        await line.put(named(good))
    assert (await line.take_one()).message.id == good


def with_headers(count: int = 1, key: str = "k", value: str = "v") -> message_pb2.Message:
    sent = message(b"payload")
    for number in range(count):
        sent.headers[key if count == 1 else f"{key}{number}"] = value
    return sent


@pytest.mark.parametrize(
    "sent",
    [with_headers(64), with_headers(key="k" * 128), with_headers(value="v" * 4_096), with_headers(value="")],
    ids=["64 pairs", "a key of 128 bytes", "a value of 4096 bytes", "an empty value"],
)
async def test_headers_up_to_their_bounds_are_taken(line: Line, sent: message_pb2.Message) -> None:
    await line.create()
    await line.put(sent)
    assert dict((await line.take_one()).message.headers) == dict(sent.headers)


@pytest.mark.parametrize(
    "sent",
    [
        with_headers(65),
        with_headers(key="k" * 129),
        with_headers(key="é" * 64 + "k"),
        with_headers(key=""),
        with_headers(key="a\nb"),
        with_headers(value="v" * 4_097),
        with_headers(value="é" * 2_048 + "v"),
    ],
    ids=["65 pairs", "long key", "long key in bytes", "no key", "control", "long value", "long value in bytes"],
)
async def test_headers_beyond_their_bounds_are_refused(line: Line, sent: message_pb2.Message) -> None:
    await line.create()
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.put(sent)
    assert all(field.startswith("messages[0].headers") for field in said.violations)


@pytest.mark.parametrize("wait_ms", [-1, -0.000001, 3_600_001])
async def test_a_wait_out_of_its_range_is_refused(line: Line, wait_ms: float) -> None:
    await line.create()
    request = queue_service_pb2.PutRequest(queue=line.name, messages=[message(b"x")], wait=span(wait_ms))
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.stub.Put(request, timeout=SLACK_S)
    assert list(said.violations) == ["wait"]


async def test_the_longest_wait_is_taken(line: Line) -> None:
    await line.create()
    await line.put(b"x", wait_ms=3_600_000)


@pytest.mark.parametrize("delay_ms", [-1, -0.000001, 366 * DAY_MS + 1])
async def test_a_delay_out_of_its_range_is_refused(line: Line, delay_ms: float) -> None:
    await line.create()
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.put(delayed(delay_ms))
    assert list(said.violations) == ["messages[0].delay"]
    assert (await line.counts()).accepted == 0


async def test_a_time_more_than_366_days_ahead_is_refused(line: Line, keys: Keys) -> None:
    await line.create()
    far = Message(payload=b"far", not_before=instant(int(now_ms(keys.client)) + 367 * DAY_MS))
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.put(b"fine", far)
    assert list(said.violations) == ["messages[1].not_before"]
    assert (await line.counts()).accepted == 0


@pytest.mark.parametrize("nanos", [-1, 1_000_000_000])
async def test_what_is_no_valid_span_or_instant_is_refused(line: Line, nanos: int) -> None:
    await line.create()
    odd_delay, odd_instant = message(b"x"), message(b"x")
    odd_delay.delay.seconds, odd_delay.delay.nanos = 1, nanos
    odd_instant.not_before.seconds, odd_instant.not_before.nanos = 1, nanos
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.put(odd_delay, odd_instant)
    assert set(said.violations) == {"messages[0].delay", "messages[1].not_before"}


async def test_an_unknown_value_of_on_duplicate_is_refused(line: Line) -> None:
    await line.create()
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.put(b"x", on_duplicate=99)
    assert list(said.violations) == ["on_duplicate"]


@pytest.mark.parametrize("size", [200, 201])
async def test_a_producers_name_has_at_most_200_bytes(line: Line, size: int) -> None:
    await line.create()
    if size > 200:
        with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
            await line.put(b"x", producer="p" * size)
        assert list(said.violations) == ["producer"]
    else:
        await line.put(b"x", producer="p" * size)
        assert (await line.describe()).roles.producer.holder == "p" * size


@pytest.mark.parametrize("field", ["time_to_live", "on_duplicate"])
async def test_what_is_not_served_yet_is_refused_by_name_and_nothing_is_put(line: Line, field: str) -> None:
    await line.create()
    sent = message(b"x")
    duplicate = message_pb2.ON_DUPLICATE_UNSPECIFIED
    if field == "time_to_live":
        sent.time_to_live.CopyFrom(span(1_000))
    else:
        duplicate = message_pb2.ON_DUPLICATE_REPLACE
    with refused("NOT_IMPLEMENTED", UNIMPLEMENTED) as said:
        await line.put(sent, on_duplicate=duplicate)
    assert said.metadata["field"].endswith(field)
    assert (await line.counts()).accepted == 0


# Ids.


async def test_a_known_id_is_refused_and_named(line: Line) -> None:
    await line.create()
    await line.put(named("one", b"first"))
    for on_duplicate in (message_pb2.ON_DUPLICATE_UNSPECIFIED, message_pb2.ON_DUPLICATE_REJECT):
        with refused("DUPLICATE_MESSAGE", ALREADY_EXISTS) as said:
            await line.put(named("one", b"second"), on_duplicate=on_duplicate)
        assert said.metadata == {"queue": line.name, "id": "one"}
    assert payloads(await line.take()) == [b"first"]
    assert (await line.counts()).accepted == 1


async def test_among_others_a_known_id_is_refused_by_itself(line: Line) -> None:
    await line.create()
    await line.put(named("one"))
    results = (await line.put(b"before", named("one"), b"after")).results
    assert [result.HasField("error") for result in results] == [False, True, False]
    error = results[1].error
    assert error.reason == error_reason_pb2.ERROR_REASON_DUPLICATE_MESSAGE
    assert error.code == ALREADY_EXISTS.value[0]
    assert dict(error.metadata) == {"queue": line.name, "id": "one"}
    assert results[1].id == "one"
    assert [result.position for result in results] == [2, 0, 3]
    assert (await line.counts()).length == 3


async def test_if_every_message_was_refused_for_the_same_reason_the_call_fails_with_it(line: Line) -> None:
    await line.create(bound=2)
    await line.put(named("one"), named("two"))
    with refused("DUPLICATE_MESSAGE", ALREADY_EXISTS) as said:
        await line.put(named("one"), named("two"))
    assert said.metadata["id"] in {"one", "two"}
    with refused("QUEUE_FULL", RESOURCE_EXHAUSTED):
        await line.put(b"x", b"y")


async def test_if_messages_were_refused_for_different_reasons_each_is_told_its_own(line: Line) -> None:
    await line.create(bound=1)
    await line.put(named("one"))
    results = (await line.put(named("one"), named("two"))).results
    assert [result.error.reason for result in results] == [
        error_reason_pb2.ERROR_REASON_DUPLICATE_MESSAGE,
        error_reason_pb2.ERROR_REASON_QUEUE_FULL,
    ]


async def test_an_id_given_twice_in_one_batch_is_accepted_once(line: Line) -> None:
    await line.create()
    results = (await line.put(named("one", b"first"), named("one", b"second"))).results
    assert [result.HasField("error") for result in results] == [False, True]
    results = (await line.put(named("two", b"first"), named("two", b"second"), on_duplicate=KEEP)).results
    assert [result.deduplicated for result in results] == [False, True]
    assert results[0].ticket == results[1].ticket
    assert payloads(await line.take(2)) == [b"first", b"first"]


async def test_keep_answers_with_the_message_that_is_there(line: Line) -> None:
    await line.create()
    await line.put(b"ahead", named("one", b"first"))
    [kept] = (await line.put(named("one", b"second"), on_duplicate=KEEP)).results
    assert (kept.id, kept.ticket, kept.position, kept.deduplicated) == ("one", 2, 2, True)
    await line.take()
    [kept] = (await line.put(named("one", b"third"), on_duplicate=KEEP)).results
    assert (kept.ticket, kept.position, kept.deduplicated) == (2, 1, True)
    assert payloads(await line.take()) == [b"first"]


@pytest.mark.parametrize("state", ["leased", "delayed", "returned", "acked", "dead"])
@pytest.mark.parametrize("keeps", [True, False])
async def test_an_id_is_known_in_every_state_of_its_message(line: Line, state: str, keeps: bool) -> None:
    await line.create()
    await line.update("retry.max_attempts", retry={"max_attempts": 1 if state == "dead" else 0})
    await line.put(named("one", b"first"))
    lease = (await line.take_one()).lease
    if state == "delayed":
        await line.delay(lease, delay_ms=600_000)
    elif state in {"returned", "dead"}:
        await line.delay(lease, delay_ms=0)
    elif state == "acked":
        await line.ack(lease)
    before = await line.counts()
    if keeps:
        [kept] = (await line.put(named("one", b"second"), on_duplicate=KEEP)).results
        assert (kept.id, kept.deduplicated, kept.HasField("error")) == ("one", True, False)
        assert kept.position == (1 if state == "returned" else 0)
    else:
        with refused("DUPLICATE_MESSAGE", ALREADY_EXISTS):
            await line.put(named("one", b"second"))
    after = await line.counts()
    assert (after.accepted, after.length) == (before.accepted, before.length)


async def test_an_id_is_free_again_after_the_dedupe_window(line: Line) -> None:
    await line.create(dedupe_window=span(200))
    await line.put(named("one"))
    await line.ack((await line.take_one()).lease)
    with refused("DUPLICATE_MESSAGE"):
        await line.put(named("one"))

    async def is_accepted() -> bool:
        results = (await line.put(b"filler", named("one"))).results
        return not results[1].HasField("error")

    await eventually(is_accepted, within=5)


async def test_without_a_dedupe_window_an_id_is_free_as_soon_as_its_message_is_done(line: Line) -> None:
    await line.create(dedupe_window=span(0))
    for _ in range(3):
        await line.put(named("one"))
        with refused("DUPLICATE_MESSAGE"):
            await line.put(named("one"))
        await line.ack((await line.take_one()).lease)


async def test_many_racing_puts_of_one_id_store_it_once(line: Line) -> None:
    await line.create()
    answers = await asyncio.gather(*(line.put(named("one"), on_duplicate=KEEP) for _ in range(50)))
    assert sorted(answer.results[0].deduplicated for answer in answers) == [False] + [True] * 49
    assert (await line.counts()).accepted == 1


# Later messages.


async def test_a_delayed_message_is_not_in_the_line_until_it_is_due(line: Line, keys: Keys) -> None:
    await line.create()
    [result] = (await line.put(delayed(300))).results
    assert (result.ticket, result.position) == (0, 0)
    assert result.id.startswith("~")
    counts = await line.counts()
    assert (counts.length, counts.delayed) == (0, 1)
    assert (await line.get()).deliveries == []
    assert await line.peek() == []
    await eventually(lambda: keys.length == 1)
    delivery = await line.take_one()
    assert (delivery.message.payload, delivery.message.id, delivery.attempt) == (b"later", result.id, 1)
    assert delivery.waited.ToMilliseconds() >= 300


async def test_messages_fall_due_in_due_order_with_ties_in_put_order(line: Line, keys: Keys) -> None:
    await line.create()
    at = int(now_ms(keys.client)) + 400
    await line.put(
        delayed(700, b"last"),
        Message(payload=b"tie 1", not_before=instant(at)),
        delayed(100, b"first"),
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


# The bound.


async def test_a_full_queue_is_refused_with_its_bound_and_when_to_try_again(line: Line) -> None:
    await line.create(bound=2)
    await line.put(b"one", b"two")
    with refused("QUEUE_FULL", RESOURCE_EXHAUSTED) as said:
        await line.put(b"three")
    assert said.metadata == {"queue": line.name, "bound": "2"}
    assert said.retry_delay is not None
    assert said.retry_delay.total_seconds() > 0
    assert (await line.counts()).accepted == 2


async def test_a_batch_is_accepted_from_the_first_on_as_far_as_there_is_room(line: Line) -> None:
    await line.create(bound=3)
    await line.put(b"zero")
    results = (await line.put(*(b"%d" % number for number in range(4)))).results
    assert [result.position for result in results] == [2, 3, 0, 0]
    for result in results[2:]:
        assert result.error.reason == error_reason_pb2.ERROR_REASON_QUEUE_FULL
        assert result.error.code == RESOURCE_EXHAUSTED.value[0]
        assert dict(result.error.metadata) == {"queue": line.name, "bound": "3"}
        assert (result.id, result.ticket) == ("", 0)
    assert payloads(await line.take(3)) == [b"zero", b"0", b"1"]


async def test_a_message_that_was_not_accepted_keeps_its_given_id_in_the_result(line: Line) -> None:
    await line.create(bound=1)
    results = (await line.put(named("one"), named("two"))).results
    assert [result.id for result in results] == ["one", "two"]
    await line.take()
    assert not (await line.put(named("two"))).results[0].HasField("error")


async def test_a_put_waits_for_room_as_long_as_it_said(line: Line, keys: Keys) -> None:
    await line.create(bound=1)
    await line.put(b"one")
    before = now_ms(keys.client)
    with refused("QUEUE_FULL"):
        await line.put(b"two", wait_ms=300)
    assert now_ms(keys.client) - before >= 290
    await eventually(lambda: producers_wait(line, 0))


async def test_a_put_that_waits_past_its_deadline_is_answered_before_it(line: Line) -> None:
    await line.create(bound=1)
    await line.put(b"one")
    request = queue_service_pb2.PutRequest(queue=line.name, messages=[message(b"two")], wait=span(60_000))
    with refused("QUEUE_FULL", RESOURCE_EXHAUSTED):
        await line.stub.Put(request, timeout=1)
    assert payloads(await line.take()) == [b"one"]
    assert (await line.counts()).accepted == 1


async def test_a_large_batch_trickles_in_while_there_is_room_and_time(line: Line) -> None:
    await line.create(bound=2)
    putting = asyncio.create_task(line.put(*(b"%d" % number for number in range(9)), wait_ms=20_000))
    got: list[bytes] = []
    while len(got) < 9:
        answer = await line.get(2, wait_ms=5_000)
        assert (await line.counts()).length <= 2
        got += payloads(answer.deliveries)
    assert got == [b"%d" % number for number in range(9)]
    results = (await putting).results
    assert [result.ticket for result in results] == list(range(1, 10))


async def test_of_a_batch_that_ran_out_of_time_the_first_are_in_and_the_rest_are_refused_one_by_one(line: Line) -> None:
    await line.create(bound=2)
    results = (await line.put(*(b"%d" % number for number in range(4)), wait_ms=200)).results
    assert [result.HasField("error") for result in results] == [False, False, True, True]


async def test_waiting_producers_are_served_in_the_order_they_came(line: Line) -> None:
    await line.create(bound=1)
    await line.put(b"first")
    waiting = []
    for number in range(6):
        waiting.append(asyncio.create_task(line.put(b"%d" % number, wait_ms=30_000)))
        await eventually(lambda count=number: producers_wait(line, count + 1))  # type: ignore[misc]
    assert payloads(await line.take()) == [b"first"]
    for number in range(6):
        assert payloads(await line.take(wait_ms=10_000)) == [b"%d" % number]
    await asyncio.gather(*waiting)


async def test_a_newcomer_does_not_overtake_a_producer_that_waits(line: Line) -> None:
    await line.create(bound=2)
    await line.put(b"one", b"two")
    waiting = asyncio.create_task(line.put(b"three", b"four", wait_ms=30_000))
    await eventually(lambda: producers_wait(line, 1))
    await line.take()
    with refused("QUEUE_FULL"):
        await line.put(b"newcomer")
    await line.take(2, wait_ms=5_000)
    await asyncio.wait_for(waiting, 10)
    with pytest.raises(grpc.aio.AioRpcError):
        await line.put(*(b"newcomer" for _ in range(2)), all_or_nothing=True)


async def test_a_producer_that_gave_up_does_not_hold_up_those_behind_it(line: Line) -> None:
    await line.create(bound=1)
    await line.put(b"one")
    first = asyncio.create_task(line.put(b"gives up", wait_ms=30_000))
    await eventually(lambda: producers_wait(line, 1))
    second = asyncio.create_task(line.put(b"stays", wait_ms=30_000))
    await eventually(lambda: producers_wait(line, 2))
    first.cancel()
    await eventually(lambda: producers_wait(line, 1))
    await line.take()
    await asyncio.wait_for(second, 10)
    assert payloads(await line.take()) == [b"stays"]
    assert (await line.counts()).accepted == 2


async def test_what_was_not_accepted_yet_is_not_put_if_the_caller_goes_away(line: Line) -> None:
    await line.create(bound=2)
    waiting = asyncio.create_task(line.put(b"one", b"two", b"three", b"four", wait_ms=30_000))
    await eventually(lambda: producers_wait(line, 1))
    waiting.cancel()
    await eventually(lambda: producers_wait(line, 0))
    assert payloads(await line.take(2)) == [b"one", b"two"]
    assert (await line.counts()).accepted == 2


async def test_32_producers_racing_into_a_bound_of_10_never_exceed_it(line: Line, keys: Keys) -> None:
    await line.create(bound=10)
    lengths: list[int] = []
    each, producers = 10, 32
    done = asyncio.Event()

    async def produce(who: int) -> None:
        for number in range(each):
            await line.put(b"%d %d" % (who, number), wait_ms=60_000)

    async def sample() -> None:
        while not done.is_set():
            lengths.append(keys.length)
            await asyncio.sleep(0)

    async def consume() -> list[bytes]:
        got: list[bytes] = []
        while len(got) < each * producers:
            answer = await line.get(3, wait_ms=5_000)
            got += payloads(answer.deliveries)
            if answer.deliveries:
                await line.ack(*leases(answer.deliveries))
        done.set()
        return got

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        consuming = tasks.create_task(consume())
        tasks.create_task(sample())
        for who in range(producers):
            tasks.create_task(produce(who))
    assert max(lengths) <= 10
    got = consuming.result()
    assert len(set(got)) == len(got) == each * producers
    for who in range(producers):  # each producer's own order is kept
        own = [payload for payload in got if payload.startswith(b"%d " % who)]
        assert own == [b"%d %d" % (who, number) for number in range(each)]


# All or nothing.


async def test_all_or_nothing_puts_all(line: Line) -> None:
    await line.create(bound=3)
    results = (await line.put(b"1", b"2", b"3", all_or_nothing=True)).results
    assert [result.position for result in results] == [1, 2, 3]


async def test_all_or_nothing_puts_nothing_if_there_is_not_room_for_all(line: Line) -> None:
    await line.create(bound=3)
    await line.put(b"one")
    with refused("QUEUE_FULL", RESOURCE_EXHAUSTED):
        await line.put(b"1", b"2", b"3", all_or_nothing=True)
    assert (await line.counts()).accepted == 1


async def test_all_or_nothing_waits_for_room_for_all(line: Line) -> None:
    await line.create(bound=3)
    await line.put(b"one", b"two")
    waiting = asyncio.create_task(line.put(b"1", b"2", b"3", all_or_nothing=True, wait_ms=20_000))
    await eventually(lambda: producers_wait(line, 1))
    await line.take()
    assert await producers_wait(line, 1)
    assert (await line.counts()).length == 1
    await line.take()
    assert [result.position for result in (await asyncio.wait_for(waiting, 10)).results] == [1, 2, 3]


async def test_all_or_nothing_that_could_never_fit_is_refused_at_once(line: Line) -> None:
    await line.create(bound=2)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await line.put(b"1", b"2", b"3", all_or_nothing=True, wait_ms=60_000)
    said = error_of(error.value)
    assert said.code in {INVALID_ARGUMENT, FAILED_PRECONDITION}
    assert said.reason in {"FIELD_INVALID", "TOO_LARGE"}
    assert (await line.counts()).accepted == 0


async def test_all_or_nothing_with_a_known_id_puts_nothing(line: Line) -> None:
    await line.create()
    await line.put(named("one"))
    with refused("DUPLICATE_MESSAGE", ALREADY_EXISTS) as said:
        await line.put(b"new", named("one"), all_or_nothing=True)
    assert said.metadata == {"queue": line.name, "id": "one"}
    assert (await line.counts()).accepted == 1


async def test_all_or_nothing_keeps_known_ids_and_puts_the_others(line: Line) -> None:
    await line.create(bound=2)
    await line.put(named("one"))
    results = (await line.put(named("one"), b"new", all_or_nothing=True, on_duplicate=KEEP)).results
    assert [(result.deduplicated, result.position) for result in results] == [(True, 1), (False, 2)]


async def test_racing_batches_of_all_or_nothing_are_each_whole(line: Line) -> None:
    await line.create()
    await asyncio.gather(*(line.put(*(b"%d" % who for _ in range(5)), all_or_nothing=True) for who in range(20)))
    got = payloads(await line.take(100))
    assert all(len(set(got[at : at + 5])) == 1 for at in range(0, 100, 5))


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


async def test_a_connection_cut_in_the_middle_of_waiting_takes_its_put_out_of_the_line(
    line: Line, connect: Callable[[str], grpc.aio.Channel], service: ServiceProcess
) -> None:
    await line.create(bound=1)
    await line.put(b"one")
    channel = connect(service.address)
    other = Line(queue_service_pb2_grpc.QueueServiceStub(channel), line.name)
    waiting = asyncio.create_task(other.put(b"two", wait_ms=30_000))
    await eventually(lambda: producers_wait(line, 1))
    await channel.close()
    await eventually(lambda: producers_wait(line, 0))
    await asyncio.wait({waiting})
    await line.take()
    assert (await line.counts()).accepted == 1
