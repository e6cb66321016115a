"""What a Put may hold: sizes and fields, up to their bounds and beyond."""

from __future__ import annotations

import grpc
import pytest

from harness import error_of, refused
from headway.v1 import message_pb2, queue_service_pb2
from wire.calls import (
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    SLACK_S,
    Keys,
    Line,
    Message,
    delayed,
    instant,
    message,
    named,
    now_ms,
    payloads,
    span,
)

MAX_BATCH = 1_000
MAX_BYTES = 1024 * 1024
DAY_MS = 24 * 3_600 * 1_000


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
