"""Produce: batches on one stream, stored and answered in order, and held back by a full queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from harness import ServiceProcess, StoreServer, eventually
from headway.v1 import message_pb2
from wire.calls import Line, Message, line_at
from wire.conditions import producers_wait
from wire.flows import Producing, reasons, waiting_payloads

KEEP, REPLACE = message_pb2.ON_DUPLICATE_KEEP, message_pb2.ON_DUPLICATE_REPLACE


async def length_is(line: Line, length: int) -> bool:
    return (await line.counts()).length == length


async def test_batches_are_stored_and_answered_in_order(line: Line) -> None:
    await line.create()
    async with Producing(line) as stream:
        for number in range(50):
            await stream.send(b"%d a" % number, b"%d b" % number)
        await stream.done()
        await stream.ended()
        assert stream.answered == list(range(1, 51))
        results = [result for one in stream.seen for result in one.results]
        assert [one.ticket for one in results] == list(range(1, 101))
        assert [one.position for one in results] == list(range(1, 101))
        assert len({one.id for one in results}) == 100
    assert await waiting_payloads(line) == [b"%d %c" % (number, which) for number in range(50) for which in b"ab"]


async def test_bare_and_other_batches_stand_in_the_order_in_which_they_were_sent(line: Line) -> None:
    """Also those that went together in one step, and those that room was found for bit by bit."""
    await line.create(bound=30)
    batches = [[b"%d-%d" % (number, i) for i in range(10)] for number in range(8)]
    async with Producing(line) as stream:
        for number, batch in enumerate(batches):
            odd = [Message(payload=b"%d-x" % number, id=f"id {number}", headers={"k": "v"})] if number % 3 == 1 else []
            await stream.send(*batch[:5], *odd, *batch[5:])
            batch[5:5] = [one.payload for one in odd]
        taken: list[message_pb2.Delivery] = []
        count = sum(map(len, batches))
        while len(taken) < count:
            some = (await line.get(7, wait_ms=5_000)).deliveries
            await line.ack(*[one.lease for one in some])
            taken += some
        await stream.answer(8)
        results = [result for one in stream.seen for result in one.results]
    assert [one.message.payload for one in taken] == [payload for batch in batches for payload in batch]
    assert [(one.message.id, one.ticket) for one in taken] == [(one.id, one.ticket) for one in results]
    assert [one.ticket for one in results] == list(range(1, count + 1))
    assert [one.id for one in results if not one.id.startswith("~")] == ["id 1", "id 4", "id 7"]
    assert all(1 <= one.position <= 30 for one in results)
    assert [one.message.id for one in taken if one.message.headers] == ["id 1", "id 4", "id 7"]


async def test_the_batch_number_is_the_senders_own(line: Line) -> None:
    await line.create()
    async with Producing(line) as stream:
        for number in (7, 7, 0, 2**64 - 1):
            await stream.send(b"x", batch=number)
        await stream.done()
        await stream.ended()
        assert stream.answered == [7, 7, 0, 2**64 - 1]


async def test_messages_are_as_those_of_a_put(line: Line) -> None:
    await line.create()
    async with Producing(line) as stream:
        results = await stream.put(Message(id="a", payload=b"1", headers={"k": "v"}), Message(id="a", payload=b"2"))
        assert reasons(results) == ["", "DUPLICATE_MESSAGE"]
        assert results[1].error.metadata == {"queue": line.name, "id": "a"}
        [kept] = await stream.put(Message(id="a", payload=b"3"), on_duplicate=KEEP)
        assert (kept.deduplicated, kept.body_differs, kept.ticket) == (True, True, 1)
        every = await stream.put(Message(id="a", payload=b"4"), Message(id="a", payload=b"5"))
        assert reasons(every) == ["DUPLICATE_MESSAGE"] * 2
    delivery = await line.take_one()
    assert (delivery.message.payload, dict(delivery.message.headers)) == (b"1", {"k": "v"})


async def test_different_queues_take_turns_on_one_stream(line: Line) -> None:
    other, missing = Line(line.stub, f"{line.name}-other"), f"{line.name}-missing"
    await line.create()
    await other.create()
    try:
        async with Producing(line) as stream:
            await stream.put(b"1")
            await stream.put(b"2", queue=other.name)
            await stream.put(b"3")  # the queue of the one before
            results = await stream.put(b"4", b"5", queue=missing)
            assert reasons(results) == ["QUEUE_NOT_FOUND"] * 2
            assert results[0].error.metadata == {"queue": missing}
            await stream.put(b"6", queue=line.name)
        assert await waiting_payloads(line) == [b"1", b"6"]
        assert await waiting_payloads(other) == [b"2", b"3"]
    finally:
        await other.delete()


async def test_a_closed_queue_is_told_of_each_message_and_ends_nothing(line: Line) -> None:
    await line.create()
    async with Producing(line) as stream:
        await stream.put(b"1")
        await line.close()
        assert reasons(await stream.put(b"2", b"3")) == ["QUEUE_CLOSED"] * 2
        await line.delete()
        assert reasons(await stream.put(b"4")) == ["QUEUE_NOT_FOUND"]
        await line.create()
        assert reasons(await stream.put(b"5")) == [""]


async def test_a_full_queue_holds_the_stream_back_and_is_never_overfilled(line: Line) -> None:
    await line.create(bound=3)
    async with Producing(line) as stream:
        for number in range(4):
            await stream.send(b"%d a" % number, b"%d b" % number)
        await stream.answer(1)
        await eventually(lambda: producers_wait(line, 1))
        assert stream.answered == [1]
        taken: list[bytes] = []
        while len(taken) < 8:
            assert (await line.counts()).length <= 3
            [one] = await line.take(1, wait_ms=5_000)
            taken.append(one.message.payload)
            await line.ack(one.lease)
        await stream.answer(4)
        assert taken == [b"%d %c" % (number, which) for number in range(4) for which in b"ab"]
        assert stream.answered == [1, 2, 3, 4]
        assert all(not one.HasField("error") for answer in stream.seen for one in answer.results)


async def test_each_batch_is_answered_when_it_is_stored_though_those_behind_it_wait(line: Line) -> None:
    """What came while the first one waited is tried in one step; then each waits by itself."""
    await line.create(bound=2)
    await line.put(b"1", b"2")
    async with Producing(line) as stream:
        await stream.send(b"3")
        await eventually(lambda: producers_wait(line, 1))
        await stream.send(b"4", b"5")
        await stream.send(Message(payload=b"6", id="six"))
        await stream.send(Message(payload=b"six again", id="six"), on_duplicate=KEEP)
        await line.take(1)
        await eventually(lambda: stream.answered == [1])
        await line.take(2)  # 2 and 3
        await eventually(lambda: stream.answered == [1, 2])
        assert await waiting_payloads(line) == [b"4", b"5"]
        await line.take(1)
        await eventually(lambda: stream.answered == [1, 2, 3, 4])
        assert [reasons(list(one.results)) for one in stream.seen] == [[""], ["", ""], [""], [""]]
        assert stream.seen[3].results[0].deduplicated
    assert await waiting_payloads(line) == [b"5", b"6"]


async def test_batches_that_go_together_keep_what_each_asked_for(line: Line) -> None:
    """Another queue, and another way with known ids, make another step."""
    other = Line(line.stub, f"{line.name}-other")
    await line.create(bound=1)
    await other.create()
    try:
        await line.put(b"first")
        async with Producing(line) as stream:
            await stream.send(b"second")
            await eventually(lambda: producers_wait(line, 1))
            await stream.send(Message(payload=b"a", id="a"), queue=other.name)
            await stream.send(Message(payload=b"b", id="a"), queue=other.name)
            await stream.send(Message(payload=b"c", id="a"), queue=other.name, on_duplicate=KEEP)
            await stream.send(Message(payload=b"d", id="a"), queue=other.name, on_duplicate=REPLACE)
            await stream.send(Message(payload=b"e", not_before=Timestamp(seconds=1)), queue=other.name)
            await line.take(1)
            await eventually(lambda: stream.answered == [1, 2, 3, 4, 5, 6])
            found = [reasons(list(one.results)) for one in stream.seen]
            assert found == [[""], [""], ["DUPLICATE_MESSAGE"], [""], [""], [""]]
            assert stream.seen[3].results[0].deduplicated
        assert await waiting_payloads(other) == [b"d", b"e"]
    finally:
        await other.delete()


async def test_a_full_queue_keeps_the_sender_from_sending_on(line: Line) -> None:
    await line.create(bound=1)
    async with Producing(line) as stream:
        sent = 0

        async def flood() -> None:
            nonlocal sent
            for _ in range(1_000):
                await stream.send(b"x" * 100_000)
                sent += 1

        flooding = asyncio.create_task(flood())
        await stream.answer(1)
        before = -1
        while before != sent:  # until it can send no more
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 100
        flooding.cancel()
    await eventually(lambda: producers_wait(line, 0))


async def test_streams_and_puts_wait_for_room_in_the_order_in_which_they_came(line: Line) -> None:
    await line.create(bound=1)
    await line.put(b"full")
    async with Producing(line) as first, Producing(line) as third:
        await first.send(b"1")
        await eventually(lambda: producers_wait(line, 1))
        second = asyncio.create_task(line.put(b"2", wait_ms=10_000))
        await eventually(lambda: producers_wait(line, 2))
        await third.send(b"3")
        await eventually(lambda: producers_wait(line, 3))
        got = [(await line.take_one(wait_ms=5_000)).message.payload for _ in range(4)]
        assert got == [b"full", b"1", b"2", b"3"]
        await second


async def test_a_reader_that_is_slow_holds_its_own_stream_back_and_nobody_else(line: Line) -> None:
    await line.create()
    async with Producing(line, reads=False) as slow, Producing(line) as other:
        sending = asyncio.create_task(flood(slow, 3_000))
        before = -1
        while before != (accepted := (await line.counts()).accepted):  # until it is held back
            assert reasons(await other.put(b"other")) == [""]
            before = accepted + 1
            await asyncio.sleep(0.3)
        assert accepted < 3_000 * 1_000
        await slow.cancel()
        sending.cancel()


async def flood(stream: Producing, batches: int) -> None:
    for _ in range(batches):
        await stream.send(*([b""] * 1_000))


async def test_two_processes_share_one_bound_and_one_line(
    line: Line,
    prefix: str,
    store_server: StoreServer,
    make_service: Callable[..., ServiceProcess],
    connect: Callable[[str], grpc.aio.Channel],
) -> None:
    await line.create(bound=5)
    other = make_service(HEADWAY_REDIS_URL=store_server.url, PRESSURE_PREFIX=prefix)
    async with (
        line_at(other.address, line.name, connect) as there,
        Producing(line) as here_stream,
        Producing(there) as there_stream,
    ):
        for number in range(20):
            await here_stream.send(*(b"h %d" % at for at in range(3 * number, 3 * number + 3)))
            await there_stream.send(*(b"t %d" % at for at in range(3 * number, 3 * number + 3)))
        got: list[bytes] = []
        while len(got) < 120:
            assert (await line.counts()).length <= 5
            for one in (await line.get(4, wait_ms=10_000)).deliveries:
                got.append(one.message.payload)
                await there.ack(one.lease)
        for which in (b"h", b"t"):
            assert [one for one in got if one.startswith(which)] == [b"%b %d" % (which, at) for at in range(60)]
        await here_stream.answer(20)
        await there_stream.answer(20)
