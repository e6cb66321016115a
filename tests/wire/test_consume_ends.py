"""How a Consume stream ends, and what it leaves behind: hostile input, callers that vanish, processes that go."""

from __future__ import annotations

import asyncio
import signal
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from harness import ServiceProcess, StoreServer, eventually, refused
from headway.v1 import queue_service_pb2 as pb
from wire.calls import (
    ACKED,
    EXTENDED,
    GONE,
    INVALID_ARGUMENT,
    NOT_FOUND,
    UNAVAILABLE,
    Delivery,
    Line,
    line_at,
    payloads,
    span,
)
from wire.conditions import consumers_wait, leased
from wire.flows import Consuming, ends
from wire.test_pause import pause, resume

Connect = Callable[[str], grpc.aio.Channel]
HOUR_MS = 3_600_000.0


def more_than(stream: Consuming, count: int) -> bool:
    return len(stream.seen) > count


def start(line: Line, **fields: Any) -> pb.ConsumeStart:
    return pb.ConsumeStart(queue=line.name, credit=pb.Credit(messages=2), **fields)


async def test_a_cancelled_stream_gives_back_at_once_in_ticket_order_at_no_attempts_cost(line: Line) -> None:
    await line.create()
    await line.put(*(b"%d" % number for number in range(6)))
    async with Consuming(line, 4, lease_ms=HOUR_MS) as stream:
        held = await stream.taken(4)
        await stream.ack(held[1].lease)
        await stream.results(1)
    await eventually(lambda: leased(line, 0), within=1)
    again = await line.take(5)
    assert payloads(again) == [b"0", b"2", b"3", b"4", b"5"]
    assert {one.attempt for one in again} == {1}


async def test_the_end_of_a_stream_serves_the_next_in_line(line: Line) -> None:
    await line.create(limit=1)
    await line.put(b"1")
    async with Consuming(line, 1, lease_ms=HOUR_MS) as stream:
        await stream.taken(1)
        async with Consuming(line, 1) as other:
            await other.position(1)
            await stream.cancel()
            assert payloads(await other.taken(1)) == [b"1"]


async def test_a_stream_that_ends_while_it_waits_leaves_the_line(line: Line) -> None:
    await line.create()
    async with Consuming(line, 1) as stream:
        await stream.position(1)
    await eventually(lambda: consumers_wait(line, 0), within=1)
    await line.put(b"1")
    assert payloads(await line.take(1)) == [b"1"]


async def test_a_connection_that_breaks_gives_back(line: Line, service: ServiceProcess, connect: Connect) -> None:
    await line.create()
    await line.put(b"1", b"2")
    async with line_at(service.address, line.name, connect) as there:
        stream = Consuming(there, 2, lease_ms=HOUR_MS)
        await stream.step(start=start(line, lease=span(HOUR_MS)))
        await stream.taken(2)
    await eventually(lambda: leased(line, 0), within=1)
    await stream.cancel()
    assert [one.attempt for one in await line.take(2)] == [1, 1]


async def test_a_caller_cancelled_at_any_moment_leaves_nothing_leased(line: Line) -> None:
    await line.create(limit=5)
    for number in range(60):
        await line.put(b"%d" % number)
        async with Consuming(line, 3, lease_ms=HOUR_MS) as stream:
            for _ in range(number % 12):
                await asyncio.sleep(0.001)
            if stream.deliveries:
                await stream.ack(stream.deliveries[0].lease)
    await eventually(lambda: leased(line, 0))
    await eventually(lambda: consumers_wait(line, 0))
    counts = await line.counts()
    assert counts.length + counts.acked == 60
    rest = await line.take(min(counts.length, 5))
    assert {one.attempt for one in rest} <= {1}


async def test_what_a_call_extended_goes_back_though_the_stream_takes_it_for_lapsed(line: Line) -> None:
    await line.create()
    await line.put(b"1", b"2")
    async with Consuming(line, 1, lease_ms=HOUR_MS) as stream:
        [token] = await stream.tokens(1)
        await stream.extend(token, lease_ms=1_500)
        await stream.results(1)
        [result] = await line.extend(token, lease_ms=HOUR_MS)
        assert result.settled == EXTENDED
        await stream.taken(2)  # the first counts no more
        assert await leased(line, 2)
    await eventually(lambda: leased(line, 0), within=1)
    assert [(one.message.payload, one.attempt) for one in await line.take(2)] == [(b"1", 1), (b"2", 1)]


async def test_what_a_call_extended_is_not_searched_for_among_all_leases_when_the_stream_ends(
    line: Line, store_server: StoreServer
) -> None:
    await line.create()
    await line.put(b"1", b"2")
    with store_server.client() as client, client.monitor() as monitor:
        async with Consuming(line, 1, lease_ms=HOUR_MS) as stream:
            [token] = await stream.tokens(1)
            await stream.extend(token, lease_ms=1_500)
            await stream.results(1)
            await line.extend(token, lease_ms=HOUR_MS)
            await stream.taken(2)
        await eventually(lambda: leased(line, 0), within=5)
        client.echo(line.name + " is over")
        given: list[str] = []
        while not given or not given[-1].startswith("ECHO"):
            given.append(monitor.next_command()["command"])
    assert len(given) > 5
    assert [one for one in given if one.upper().startswith("HGETALL") and line.name in one and "lease" in one] == []


async def test_a_deadline_that_passes_gives_back(line: Line) -> None:
    await line.create()
    await line.put(b"1")
    async with Consuming(line, 1, lease_ms=HOUR_MS, timeout=1) as stream:
        await stream.taken(1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.ended()
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await eventually(lambda: leased(line, 0), within=1)


async def test_settles_sent_just_before_the_half_close_are_done(line: Line) -> None:
    await line.create()
    for number in range(20):
        await line.put(b"%d" % number)
        async with Consuming(line, 1, lease_ms=HOUR_MS) as stream:
            await stream.ack(*await stream.tokens(1))
            await stream.done()
            await stream.ended()
            assert [one.settled for one in stream.settled] == [ACKED]
    assert (await line.counts()).acked == 20


async def test_settles_sent_just_before_the_caller_goes_are_done_or_their_messages_come_again(line: Line) -> None:
    await line.create()
    await line.put(*(b"%d" % number for number in range(20)))
    for _ in range(20):
        async with Consuming(line, 1, lease_ms=HOUR_MS) as stream:
            await stream.ack(*await stream.tokens(1))
    await eventually(lambda: leased(line, 0))
    counts = await line.counts()
    assert counts.acked + counts.length == 20


async def test_a_stream_that_says_nothing_and_half_closes_is_refused(line: Line) -> None:
    async with Consuming(line, starts=False) as stream:
        await stream.done()
        with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
            await stream.ended()
        assert list(said.violations) == ["start"]


FIRST: dict[str, tuple[dict[str, Any], str, str]] = {
    "nothing": ({}, "FIELD_INVALID", "start"),
    "credit": ({"credit": pb.Credit(messages=1)}, "FIELD_INVALID", "start"),
    "ack": ({"ack": pb.AckRequest(leases=["x"])}, "FIELD_INVALID", "start"),
    "no name": ({"start": pb.ConsumeStart()}, "NAME_REFUSED", "queue"),
    "bad name": ({"start": pb.ConsumeStart(queue="a:bound")}, "NAME_REFUSED", "queue"),
    "short lease": ({"start": pb.ConsumeStart(queue="q", lease=span(99))}, "FIELD_INVALID", "start.lease"),
    "long lease": (
        {"start": pb.ConsumeStart(queue="q", lease=span(12 * HOUR_MS + 1))},
        "FIELD_INVALID",
        "start.lease",
    ),
    "long consumer": ({"start": pb.ConsumeStart(queue="q", consumer="x" * 201)}, "FIELD_INVALID", "start.consumer"),
    "much credit": (
        {"start": pb.ConsumeStart(queue="q", credit=pb.Credit(messages=100_001))},
        "FIELD_INVALID",
        "start.credit.messages",
    ),
}


@pytest.mark.parametrize("case", FIRST)
async def test_a_bad_first_step_is_refused(line: Line, case: str) -> None:
    step, reason, field = FIRST[case]
    async with Consuming(line, starts=False) as stream:
        await stream.step(**step)
        with refused(reason, INVALID_ARGUMENT) as said:
            await stream.ended()
        assert list(said.violations) == [field]
        assert said.metadata == {"field": field}


LATER: dict[str, tuple[dict[str, Any], str, str]] = {
    "nothing": ({}, "FIELD_INVALID", "step"),
    "a second start": ({"start": pb.ConsumeStart(queue="q")}, "FIELD_INVALID", "start"),
    "no leases": ({"ack": pb.AckRequest()}, "FIELD_INVALID", "ack.leases"),
    "many leases": ({"ack": pb.AckRequest(leases=["x"] * 1_001)}, "TOO_LARGE", "ack.leases"),
    "large result": ({"ack": pb.AckRequest(leases=["x"], result=b"x" * 4_097)}, "TOO_LARGE", "ack.result"),
    "another queue": ({"ack": pb.AckRequest(leases=["x"], queue="q")}, "FIELD_INVALID", "ack.queue"),
    "bad delay": ({"delay": pb.DelayRequest(leases=["x"], delay=span(-1))}, "FIELD_INVALID", "delay.delay"),
    "far delay": (
        {"delay": pb.DelayRequest(leases=["x"], until=Timestamp(seconds=4_000_000_000))},  # only the store can tell
        "FIELD_INVALID",
        "delay.until",
    ),
    "delay elsewhere": ({"delay": pb.DelayRequest(leases=["x"], queue="q")}, "FIELD_INVALID", "delay.queue"),
    "bad lease": ({"extend": pb.ExtendRequest(leases=["x"], lease=span(1))}, "FIELD_INVALID", "extend.lease"),
    "extend elsewhere": ({"extend": pb.ExtendRequest(leases=["x"], queue="q")}, "FIELD_INVALID", "extend.queue"),
    "much credit": ({"credit": pb.Credit(messages=2**32 - 1)}, "FIELD_INVALID", "credit.messages"),
}


@pytest.mark.parametrize("case", LATER)
async def test_a_bad_step_ends_the_stream_behind_the_answers_to_those_before(line: Line, case: str) -> None:
    step, reason, field = LATER[case]
    await line.create()
    await line.put(b"1", b"2")
    async with Consuming(line, 2, lease_ms=HOUR_MS) as stream:
        held = await stream.taken(2)
        await stream.ack(held[0].lease)
        await stream.step(**step)
        with refused(reason, INVALID_ARGUMENT) as said:
            await stream.ended()
        assert said.metadata["field"] == field
        assert list(said.violations) == [field]
        assert [one.settled for one in stream.settled] == [ACKED]
    await eventually(lambda: leased(line, 0), within=1)
    assert (await line.counts()).length == 1


async def test_bytes_that_are_no_step_end_the_stream_and_give_back(line: Line, channel: grpc.aio.Channel) -> None:
    await line.create()
    await line.put(b"1")
    raw: Any = channel.stream_stream("/headway.v1.QueueService/Consume")
    call = raw(timeout=10)
    await call.write(pb.ConsumeRequest(start=start(line)).SerializeToString())
    assert payloads(pb.ConsumeResponse.FromString(await call.read()).deliveries) == [b"1"]
    await call.write(b"\xff" * 40)
    with refused("FIELD_INVALID", INVALID_ARGUMENT):
        while await call.read() is not grpc.aio.EOF:
            pass
        raise AssertionError(await call.code())
    await eventually(lambda: leased(line, 0), within=1)


@pytest.mark.parametrize("half_closes", [False, True])
async def test_a_stream_without_credit_learns_at_its_start_that_there_is_no_queue(
    line: Line, half_closes: bool
) -> None:
    async with Consuming(line) as stream:
        if half_closes:
            await stream.done()
        with refused("QUEUE_NOT_FOUND", NOT_FOUND):
            await stream.ended()


async def test_a_stream_without_credit_learns_at_its_start_that_the_queue_is_drained(line: Line) -> None:
    await line.create()
    await line.close()
    async with Consuming(line) as stream:
        assert [one.drained for one in await stream.ended()] == [True]


async def test_a_stream_that_had_no_credit_yet_leases_nothing_of_a_queue_made_anew(line: Line) -> None:
    await line.create()
    async with Consuming(line) as stream:
        await stream.ack("made-up")
        await stream.results(1)  # so it has begun
        await line.delete()
        await line.create()
        await line.put(b"new")
        await stream.credit(3)
        with refused("QUEUE_DELETED", NOT_FOUND):
            await stream.ended()
    assert not stream.deliveries
    assert [one.attempt for one in await line.take(1)] == [1]


@pytest.mark.parametrize("anew", [False, True])
async def test_a_stream_whose_credit_was_taken_back_learns_of_the_deletion_with_its_next_settle(
    line: Line, anew: bool
) -> None:
    await line.create()
    await line.put(b"1", b"2")
    async with Consuming(line, 2, lease_ms=HOUR_MS) as stream:
        held = await stream.tokens(2)
        await stream.credit(0)
        await line.delete()
        if anew:
            await line.create()
        await stream.ack(held[0])
        with refused("QUEUE_DELETED", NOT_FOUND):
            await stream.ended()
        assert [one.settled for one in stream.settled] == [GONE]


async def test_a_stream_whose_credit_was_taken_back_learns_with_its_last_settle_that_the_queue_is_drained(
    line: Line,
) -> None:
    await line.create()
    await line.put(b"1", b"2")
    async with Consuming(line, 2, lease_ms=HOUR_MS) as stream:
        held = await stream.tokens(2)
        await stream.credit(0)
        await line.close()
        await stream.ack(held[0])
        await stream.results(1)
        await stream.ack(held[1])
        seen = await stream.ended()
        assert [one.drained for one in seen].count(True) == 1
        assert seen[-1].drained
        assert [one.settled for one in stream.settled] == [ACKED, ACKED]


async def test_a_reader_that_does_not_read_is_given_no_more_than_its_credit(line: Line) -> None:
    await line.create()
    for _ in range(10):
        await line.put(*([b"x" * 10_000] * 100))
    async with Consuming(line, 500, reads=False) as slow, Consuming(line, 10) as other:
        await eventually(lambda: leased(line, 510), within=10)  # whoever came first: there is enough for both
        await other.ack(*await other.tokens(10))
        await other.taken(20)
        await asyncio.sleep(0.5)
        assert (await line.counts()).leased == 510
        await slow.cancel()
        await eventually(lambda: leased(line, 10))


async def test_a_consumer_that_asks_without_reading_is_held_back(line: Line) -> None:
    await line.create()
    async with Consuming(line, 1, reads=False) as slow:
        sent = 0

        async def flood() -> None:
            nonlocal sent
            for _ in range(20_000):
                await slow.ack(*(["x" * 200] * 200))
                sent += 1

        flooding = asyncio.create_task(flood())
        before = -1
        while before != sent:  # until it can send no more
            before = sent
            await asyncio.sleep(0.5)
        assert sent < 20_000
        flooding.cancel()


@dataclass
class Pair:
    """A service that goes, the queue through it, and the queue through another service."""

    service: ServiceProcess
    here: Line
    line: Line


@pytest.fixture
async def pair(
    store_server: StoreServer, make_service: Callable[..., ServiceProcess], connect: Connect
) -> AsyncIterator[Pair]:
    prefix = f"p{uuid.uuid4().hex[:8]}"
    first, second = (make_service(HEADWAY_REDIS_URL=store_server.url, PRESSURE_PREFIX=prefix) for _ in range(2))
    async with line_at(first.address, "jobs", connect) as here, line_at(second.address, "jobs", connect) as line:
        yield Pair(first, here, line)


async def test_going_down_does_what_was_asked_gives_back_and_ends_with_shutting_down(pair: Pair) -> None:
    here, line = pair.here, pair.line
    await line.create()
    await line.put(b"1", b"2", b"3")
    async with Consuming(here, 2, lease_ms=HOUR_MS) as holding:
        await holding.taken(2)
        async with Consuming(here, 5, lease_ms=HOUR_MS) as waiting:
            await waiting.taken(1)
            stopping = asyncio.create_task(asyncio.to_thread(pair.service.stop))
            for stream in (holding, waiting):
                with refused("SHUTTING_DOWN", UNAVAILABLE) as said:
                    await stream.ended()
                assert said.retry_delay is not None
        back: list[Delivery] = []

        async def all_are_back() -> bool:
            # What one stream gave back the other may still have been given, on its way out: it comes back once more.
            back.extend((await line.get(3 - len(back))).deliveries)
            return len(back) == 3

        await eventually(all_are_back, within=1)
        assert [(one.message.payload, one.attempt) for one in sorted(back, key=lambda one: one.ticket)] == [
            (b"1", 1),
            (b"2", 1),
            (b"3", 1),
        ]
        assert await stopping == 0


async def test_what_a_killed_process_had_leased_comes_through_another_within_seconds(pair: Pair) -> None:
    here, line = pair.here, pair.line
    await line.create()
    await line.put(*(b"%d" % number for number in range(6)))
    async with Consuming(here, 4, lease_ms=HOUR_MS) as holding:
        held = await holding.taken(4)
        await holding.ack(held[0].lease)
        await holding.taken(5)
        async with Consuming(line, 10, lease_ms=HOUR_MS) as other:
            await other.taken(1)
            pair.service.signal(signal.SIGKILL)
            assert sorted(payloads(await other.taken(5))) == [b"1", b"2", b"3", b"4", b"5"]
            assert {one.attempt for one in other.deliveries} == {1}
        await asyncio.to_thread(pair.service.kill)


async def test_what_a_killed_process_had_taken_up_again_comes_back_within_seconds(pair: Pair) -> None:
    here, line = pair.here, pair.line
    await line.create()
    await line.put(b"1")
    async with Consuming(here, 1, lease_ms=HOUR_MS) as holding:
        [token] = await holding.tokens(1)
        await pause(line)
        await line.extend(token, lease_ms=100)
        await eventually(lambda: leased(line, 0))  # it has lapsed
        await holding.extend(token, lease_ms=HOUR_MS)
        assert ends(await holding.results(1)) == [EXTENDED]
        pair.service.signal(signal.SIGKILL)
        await eventually(lambda: leased(line, 0))
        await resume(line)
        assert [one.attempt for one in await line.take(1)] == [1]
        await asyncio.to_thread(pair.service.kill)


async def test_streams_of_two_processes_share_a_queue_and_every_message_is_worked_on_once(
    line: Line,
    prefix: str,
    store_server: StoreServer,
    make_service: Callable[..., ServiceProcess],
    connect: Connect,
) -> None:
    await line.create(limit=30)
    other = make_service(HEADWAY_REDIS_URL=store_server.url, PRESSURE_PREFIX=prefix)
    done: list[bytes] = []

    async def work(at: Line) -> int:
        async with Consuming(at, 20) as stream:
            acked = 0
            while not any(one.drained for one in stream.seen):
                fresh = stream.deliveries[acked:]
                if fresh:
                    done.extend(payloads(fresh))
                    acked += len(fresh)
                    await stream.ack(*(one.lease for one in fresh))
                else:
                    await stream.until(partial(more_than, stream, len(stream.seen)))
            assert {one.settled for one in stream.settled} <= {ACKED}
            return acked

    async with line_at(other.address, line.name, connect) as there:
        workers = [asyncio.create_task(work(at)) for at in (line, there, line, there)]
        for number in range(20):
            await line.put(*(b"%d" % at for at in range(50 * number, 50 * number + 50)))
        await line.close()
        shares = await asyncio.gather(*workers)
    assert sorted(done, key=int) == [b"%d" % number for number in range(1_000)]
    assert sum(shares) == 1_000
    assert (await line.counts()).acked == 1_000
