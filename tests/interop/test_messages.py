"""Messages put by either side are got by the other, byte for byte, and wake whoever waits there."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable

import grpc
import pytest

from harness import error_of, eventually, refused
from headway.v1 import queue_service_pb2
from headway.v1.message_pb2 import Delivery
from interop.foreign import Foreign
from wire.calls import ACKED, ALREADY_EXISTS, Keys, Line, leases, message, payloads, span

MIB = 1024 * 1024
PAYLOADS = {
    "empty": b"",
    "text": "déjà vu".encode(),
    "binary": bytes(range(256)) * 3,
    "line ends": b"\r\n$5\r\n*3\r\n\0",
    "a number": b"0",
    "1 MiB": random.Random(7).randbytes(MIB),
}
# How Headway's own frames begin, then something that is none.
FRAME_MAGIC = b"\xf5HW\x01"
LOOK_ALIKES = {
    "only the magic": FRAME_MAGIC,
    "magic and text": FRAME_MAGIC + b"hello, not a frame",
    "magic and zeros": FRAME_MAGIC + bytes(64),
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
async def test_a_foreign_get_receives_our_payload_byte_for_byte(line: Line, foreign: Foreign, payload: bytes) -> None:
    await line.create()
    await line.put(payload)
    assert await foreign.call("get") == payload


@pytest.mark.parametrize("payload", (PAYLOADS | LOOK_ALIKES).values(), ids=PAYLOADS | LOOK_ALIKES)
async def test_our_get_receives_a_foreign_payload_byte_for_byte(line: Line, foreign: Foreign, payload: bytes) -> None:
    await foreign.call("create")
    await foreign.call("put", payload)
    assert payloads(await line.take()) == [payload]


@pytest.mark.parametrize("payload", (PAYLOADS | LOOK_ALIKES).values(), ids=PAYLOADS | LOOK_ALIKES)
async def test_our_get_receives_our_payload_byte_for_byte(line: Line, foreign: Foreign, payload: bytes) -> None:
    await foreign.call("create")
    await line.put(payload)
    assert payloads(await line.take()) == [payload]


async def test_a_foreign_nonblocking_get_and_peek_see_our_messages(line: Line, foreign: Foreign) -> None:
    await line.create()
    await line.put(b"one", b"two")
    assert await foreign.call("peek_reverse_nowait") == b"two"  # the tail: pressure's word for it
    assert await foreign.call("get_nowait") == b"one"
    assert await foreign.call("qsize") == 1


async def test_messages_of_both_sides_keep_the_order_in_which_they_were_put(line: Line, foreign: Foreign) -> None:
    await line.create()
    for number in range(0, 12, 3):
        await line.put(b"%d" % number, b"%d" % (number + 1))
        await foreign.call("put", b"%d" % (number + 2))
    got: list[bytes] = []
    for _ in range(4):
        got.append(await foreign.call("get"))
        got += payloads(await line.take(2))
    assert got == [b"%d" % number for number in range(12)]


async def test_a_queue_made_by_a_foreign_client_is_described_listed_put_to_and_got_from(
    line: Line, foreign: Foreign, keys: Keys
) -> None:
    await foreign.call("create", 5)
    await foreign.call("put", b"early")
    described = await line.describe()
    assert (described.name, described.policy.bound, described.closed) == (line.name, 5, False)
    assert described.policy.lease.ToMilliseconds() == 30_000
    assert described.counts.length == keys.length == 1
    listed = await line.stub.List(queue_service_pb2.ListRequest(prefix=line.name), timeout=10)
    assert [queue.name for queue in listed.queues] == [line.name]
    await line.put(b"late")
    first, second = await line.take(2)
    assert [first.message.payload, second.message.payload] == [b"early", b"late"]
    assert (first.ticket, second.ticket) == (1, 2)
    assert await line.ack(first.lease, second.lease) == [ACKED, ACKED]


async def test_when_a_foreign_message_was_put_is_unknown_if_headway_did_not_know_the_queue(
    line: Line, foreign: Foreign
) -> None:
    await foreign.call("create")
    await foreign.call("put", b"early")
    delivery = await line.take_one()
    assert not delivery.HasField("put_at")
    assert not delivery.HasField("waited")


async def test_the_length_is_the_length_of_the_list_whatever_the_stats_say(
    line: Line, foreign: Foreign, keys: Keys
) -> None:
    await line.create()
    await line.put(b"one", b"two", b"three")
    await foreign.call("close")
    await foreign.call("get")  # a drain, which stock clients do not count
    assert int(keys.client.get(keys["stats:produced_messages"]) or 0) == 3
    assert int(keys.client.get(keys["stats:consumed_messages"]) or 0) == 0
    counts = await line.counts()
    assert (counts.length, counts.taken_by_foreign) == (2, 1)


async def test_stats_agree_whoever_counts(line: Line, foreign: Foreign, keys: Keys) -> None:
    await line.create()
    await line.put(b"12345", b"")
    await foreign.call("put", b"123")
    await foreign.call("get")
    await line.take(2)

    def stats() -> list[int]:
        names = ("produced_messages", "produced_bytes", "consumed_messages", "consumed_bytes")
        return [int(keys.client.get(keys[f"stats:{name}"]) or 0) for name in names]

    counts = await line.counts()
    described = [
        counts.produced_messages,
        counts.produced_bytes,
        counts.consumed_messages,
        counts.consumed_bytes,
    ]
    assert stats() == described == [3, 8, 3, 8]


async def test_a_message_that_comes_back_is_counted_as_consumed_once(line: Line, foreign: Foreign, keys: Keys) -> None:
    await line.create()
    await line.put(b"12345")
    for _ in range(3):
        await line.delay((await line.take_one()).lease, delay_ms=0)
    assert await foreign.call("get") == b"12345"
    counts = await line.counts()
    assert (counts.produced_messages, counts.acked, counts.taken_by_foreign) == (1, 0, 1)
    assert int(keys.client.get(keys["stats:produced_messages"]) or 0) == 1


async def test_a_message_that_came_back_is_got_by_a_foreign_client_before_the_others(
    line: Line, foreign: Foreign
) -> None:
    await line.create()
    await line.put(b"first", b"second", b"third")
    taken = await line.take(2)
    await line.delay(taken[1].lease, delay_ms=0)
    await line.delay(taken[0].lease, delay_ms=0)
    assert [await foreign.call("get") for _ in range(3)] == [b"first", b"second", b"third"]
    assert (await line.counts()).returned == 0


async def test_our_waiting_get_is_woken_by_a_foreign_put(
    line: Line, foreign: Foreign, figure: Callable[[str, str], None]
) -> None:
    await line.create()
    spans: list[float] = []
    for number in range(20):
        waiting = asyncio.create_task(line.get(wait_ms=20_000))
        await eventually(lambda: waits(line))
        started = time.perf_counter()
        await foreign.call("put", b"%d" % number)
        answer = await waiting
        spans.append((time.perf_counter() - started) * 1_000)
        assert payloads(answer.deliveries) == [b"%d" % number]
        await line.ack(*leases(answer.deliveries))
    figure(
        "a foreign put wakes our waiting Get",
        f"median {statistics.median(spans):.1f} ms, longest {max(spans):.1f} ms of {len(spans)}",
    )
    assert statistics.median(spans) < 1_000


async def waits(line: Line) -> bool:
    """Whether a Get waits, as the service tells it."""
    return (await line.describe()).counts.consumers_waiting == 1


async def test_a_blocked_foreign_get_is_woken_by_our_put(
    line: Line, foreign: Foreign, figure: Callable[[str, str], None]
) -> None:
    await line.create()
    spans: list[float] = []
    for number in range(10):
        blocked = await foreign.block("get")
        started = time.perf_counter()
        await line.put(b"%d" % number)
        assert await asyncio.wait_for(blocked, 10) == b"%d" % number
        spans.append((time.perf_counter() - started) * 1_000)
    figure(
        "our Put wakes a blocked foreign get",
        f"median {statistics.median(spans):.1f} ms, longest {max(spans):.1f} ms of {len(spans)}",
    )
    assert statistics.median(spans) < 1_000


async def test_a_message_with_an_id_reaches_a_foreign_client_with_its_payload_at_the_end(
    line: Line, foreign: Foreign
) -> None:
    await line.create()
    framed = message(b"payload")
    framed.id = "order-1"
    await line.put(framed)
    got = await foreign.call("get")
    assert got.startswith(FRAME_MAGIC)
    assert got.endswith(b"payload")


async def test_an_id_that_a_foreign_client_took_counts_as_finished_for_the_dedupe_window(
    line: Line, foreign: Foreign
) -> None:
    await line.create()
    framed = message(b"payload")
    framed.id = "order-1"
    await line.put(framed)
    await foreign.call("get")
    with refused("DUPLICATE_MESSAGE", ALREADY_EXISTS):
        await line.put(framed)


async def test_an_id_that_a_foreign_client_took_is_free_again_without_a_dedupe_window(
    line: Line, foreign: Foreign
) -> None:
    await line.create(dedupe_window=span(0))
    framed = message(b"payload")
    framed.id = "order-1"
    await line.put(framed)
    await foreign.call("get")
    result = (await line.put(framed)).results[0]
    assert not result.HasField("error")
    assert (result.deduplicated, result.position) == (False, 1)


async def test_positions_and_tickets_count_what_foreign_clients_put_and_take(line: Line, foreign: Foreign) -> None:
    await line.create()
    await foreign.call("put", b"one")
    result = (await line.put(b"two")).results[0]
    assert (result.ticket, result.position) == (2, 2)
    await foreign.call("get")
    await foreign.call("put", b"three")
    result = (await line.put(b"four")).results[0]
    assert (result.ticket, result.position) == (4, 3)
    assert [(seen.message.payload, seen.ticket, seen.position) for seen in await line.peek(10)] == [
        (b"two", 2, 1),
        (b"three", 3, 2),
        (b"four", 4, 3),
    ]


async def get_beside_a_busy_consumer(line: Line) -> list[Delivery]:
    """It asks without a pause, so every look of ours may fall into one of its gets."""
    try:
        return list((await line.get(3, wait_ms=100)).deliveries)
    except grpc.aio.AioRpcError as error:
        assert error_of(error).reason == "ROLE_IN_USE"
        return []


async def test_iterating_foreign_clients_and_our_workers_share_one_queue_without_loss_or_repeat(
    line: Line, make_foreign: Callable[..., Foreign]
) -> None:
    await line.create(bound=8)
    total = 60
    producer, consumer = make_foreign(), make_foreign()

    async def produce(by_us: bool) -> None:
        for number in range(total // 2):
            payload = b"%s%d" % (b"ours" if by_us else b"theirs", number)
            if by_us:
                await line.put(payload, wait_ms=20_000)
            else:
                await asyncio.wait_for(producer.start("put", payload), 20)

    got: list[bytes] = []

    async def consume_ours() -> None:
        while len(got) < total:
            deliveries = await get_beside_a_busy_consumer(line)
            got.extend(payloads(deliveries))
            if deliveries:
                await line.ack(*leases(deliveries))

    async def consume_theirs() -> None:
        while len(got) < total:
            try:
                payload = await consumer.call("get_nowait")
            except consumer.errors.QueueInUseError:
                continue
            if payload is not None:
                got.append(payload)
            await asyncio.sleep(0)

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for work in (produce(True), produce(False), consume_ours(), consume_theirs()):
            tasks.create_task(work)
    expected = [b"%s%d" % (who, number) for who in (b"ours", b"theirs") for number in range(total // 2)]
    assert sorted(got) == sorted(expected)
    counts = await line.counts()
    assert (counts.length, counts.leased, counts.accepted) == (0, 0, total)
