"""Produce and Consume while the store is away: what was begun is told, nothing is lost, and who only waits goes on."""

from __future__ import annotations

import asyncio
import signal

import grpc
import pytest

from faults.conftest import Open, Serve
from faults.moments import at_rest, written
from faults.wires import ReplyProxy
from harness import StoreServer, error_of, eventually, refused
from wire.calls import ACKED, EXTENDED, UNAVAILABLE, Line, Message, payloads
from wire.conditions import consumers_wait, leased, producers_wait
from wire.flows import Consuming, Flow, Producing

HOUR_MS = 3_600_000.0


async def ends_in_trouble(stream: Flow) -> None:
    """Within the time of any call. Whether the store is known to be away when it is asked, is chance."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.ended(within=5)
    said = error_of(caught.value)
    assert (said.code, said.reason in ("STORE_UNAVAILABLE", "OUTCOME_UNKNOWN")) == (UNAVAILABLE, True)
    assert said.retry_delay is not None


async def test_a_batch_that_meets_a_store_that_is_down_ends_the_stream_and_no_later_one_passes_it(
    line: Line, proxy: ReplyProxy, serve: Serve, open_line: Open
) -> None:
    await line.create()
    service = await serve(proxy.url)
    shaky = await open_line(service, "jobs")
    async with Producing(shaky) as stream:
        await stream.put(b"1")
        proxy.cut()
        service.signal(signal.SIGSTOP)  # both are on their way before the first is looked at
        await stream.send(b"2")
        await stream.send(b"3")
        service.signal(signal.SIGCONT)
        await ends_in_trouble(stream)
        assert stream.answered == [1]
        proxy.restore()
    assert [one.message.payload for one in await line.peek(5)] == [b"1"]


async def test_a_batch_whose_answer_is_lost_is_unknown_and_may_be_sent_again_by_its_ids(
    line: Line, shaky: Line, proxy: ReplyProxy
) -> None:
    await line.create()
    async with Producing(shaky) as stream:
        await stream.put(Message(id="1", payload=b"1"))
        proxy.hold_replies()
        await stream.send(Message(id="2", payload=b"2"))
        await stream.send(Message(id="3", payload=b"3"))
        with refused("OUTCOME_UNKNOWN", UNAVAILABLE):
            await stream.ended()
        assert stream.answered == [1]
        proxy.pass_replies()
    async with Producing(shaky) as stream:
        results = await stream.put(*(Message(id=one, payload=one.encode()) for one in "123"), on_duplicate=2)
        assert [one.deduplicated for one in results] == [True, True, False]
    assert [one.message.payload for one in await line.peek(5)] == [b"1", b"2", b"3"]


async def test_a_batch_that_waits_for_room_waits_through_a_restart_of_the_store(
    line: Line, fresh_store_server: StoreServer
) -> None:
    await line.create(bound=1)
    async with Producing(line) as stream:
        number = await stream.send(b"1", b"2", b"3")
        await eventually(lambda: producers_wait(line, 1))
        await at_rest(fresh_store_server)
        await written(fresh_store_server)
        await asyncio.to_thread(fresh_store_server.restart)
        got: list[bytes] = []
        async with asyncio.timeout(20):
            while len(got) < 3:
                try:
                    got += payloads((await line.get(wait_ms=1_000)).deliveries)
                except grpc.aio.AioRpcError as error:  # it has just begun to look
                    assert error.code() is UNAVAILABLE
        assert got == [b"1", b"2", b"3"]
        assert [one.HasField("error") for one in await stream.answer(number)] == [False] * 3


async def test_a_stream_that_waits_is_silent_while_the_store_is_down_and_then_goes_on(
    line: Line, shaky: Line, proxy: ReplyProxy
) -> None:
    await line.create()
    async with Consuming(shaky, 3, lease_ms=HOUR_MS) as stream:
        await stream.position(1)
        proxy.cut()
        await asyncio.sleep(1)
        assert not stream.call.done()
        proxy.restore()
        await line.put(b"1", b"2")
        assert payloads(await stream.taken(2)) == [b"1", b"2"]
        assert {one.attempt for one in stream.deliveries} == {1}
        await stream.ack(*await stream.tokens(2))
        assert [one.settled for one in await stream.results(2)] == [ACKED, ACKED]


async def test_leases_whose_answer_was_lost_are_asked_for_again_and_nothing_is_leased_twice(
    line: Line, shaky: Line, proxy: ReplyProxy
) -> None:
    """The stream waits; its turn comes, and the store's answer does not."""
    await line.create()
    async with Consuming(shaky, 2, lease_ms=HOUR_MS) as stream:
        await stream.position(1)
        proxy.answers_left = 0  # that it is its turn is heard, and nothing else
        await line.put(b"1", b"2", b"3")
        await eventually(lambda: leased(line, 2))
        await asyncio.sleep(2.5)  # longer than the service waits for an answer
        proxy.pass_replies()
        assert payloads(await stream.taken(2)) == [b"1", b"2"]
        assert (await line.counts()).leased == 2
    await eventually(lambda: leased(line, 0))
    assert [one.attempt for one in await line.take(3)] == [1, 1, 1]


async def test_leases_whose_answer_was_lost_come_back_with_the_stream_whose_credit_was_taken_away(
    line: Line, shaky: Line, proxy: ReplyProxy
) -> None:
    await line.create()
    async with Consuming(shaky, 2, lease_ms=HOUR_MS) as stream:
        await stream.position(1)
        await turn_lost_with_its_credit(line, stream, proxy)
    await eventually(lambda: leased(line, 0), within=5)
    assert [(one.message.payload, one.attempt) for one in await line.take(2)] == [(b"1", 1), (b"2", 1)]


async def test_leases_whose_answer_was_lost_are_asked_for_again_when_there_is_credit_again(
    line: Line, shaky: Line, proxy: ReplyProxy
) -> None:
    await line.create()
    async with Consuming(shaky, 2, lease_ms=HOUR_MS) as stream:
        await stream.position(1)
        await turn_lost_with_its_credit(line, stream, proxy)
        await line.put(b"3")
        await stream.credit(3)
        assert payloads(await stream.taken(3)) == [b"1", b"2", b"3"]
        assert {one.attempt for one in stream.deliveries} == {1}
        await stream.ack(*await stream.tokens(3))
        assert [one.settled for one in await stream.results(3)] == [ACKED] * 3
    assert (await line.counts()).leased == 0


async def test_what_a_smaller_credit_does_not_take_again_of_lost_leases_comes_back_with_the_stream(
    line: Line, shaky: Line, proxy: ReplyProxy
) -> None:
    await line.create()
    async with Consuming(shaky, 2, lease_ms=HOUR_MS) as stream:
        await stream.position(1)
        await turn_lost(line, stream, proxy, messages=2, size=1)
        assert payloads(await stream.taken(1)) == [b"1"]
        assert await leased(line, 2)
    await eventually(lambda: leased(line, 0), within=5)
    assert [(one.message.payload, one.attempt) for one in await line.take(2)] == [(b"1", 1), (b"2", 1)]


async def turn_lost_with_its_credit(line: Line, stream: Consuming, proxy: ReplyProxy) -> None:
    """All credit is taken back, so the stream does not ask again."""
    await turn_lost(line, stream, proxy, messages=0)
    await eventually(lambda: consumers_wait(line, 0))
    await asyncio.sleep(0.5)  # longer than it takes to try again
    assert stream.deliveries == []
    assert await leased(line, 2)


async def turn_lost(line: Line, stream: Consuming, proxy: ReplyProxy, *, messages: int, size: int = 0) -> None:
    """Two messages come and are leased to a stream that waits. Its consumer changes the credit before it hears of them;
    the store's answer never comes."""
    proxy.answers_left = 0  # that it is its turn is heard, and nothing else
    await line.put(b"1", b"2")
    await eventually(lambda: leased(line, 2))
    await stream.credit(messages, size)
    await asyncio.sleep(0.3)  # the service has read that
    proxy.cut(refuse=False)
    proxy.pass_replies()


async def test_a_settle_that_meets_a_store_that_is_down_ends_the_stream_and_the_leases_come_back(
    line: Line, shaky: Line, proxy: ReplyProxy
) -> None:
    await line.create()
    await line.put(b"1", b"2")
    async with Consuming(shaky, 2, lease_ms=HOUR_MS) as stream:
        first, second = await stream.taken(2)
        await stream.extend(second.lease)
        assert [one.settled for one in await stream.results(1)] == [EXTENDED]
        proxy.cut()
        await stream.ack(first.lease)
        await ends_in_trouble(stream)
        proxy.restore()
        await eventually(lambda: leased(line, 0), within=10)
    assert [(one.message.payload, one.attempt) for one in await line.take(2)] == [(b"1", 1), (b"2", 1)]


async def test_a_settle_whose_answer_is_lost_is_unknown(line: Line, shaky: Line, proxy: ReplyProxy) -> None:
    await line.create()
    await line.put(b"1", b"2")
    async with Consuming(shaky, 2, lease_ms=HOUR_MS) as stream:
        first, second = await stream.taken(2)
        proxy.hold_replies()
        await stream.ack(first.lease)
        with refused("OUTCOME_UNKNOWN", UNAVAILABLE):
            await stream.ended()
        proxy.pass_replies()
    await eventually(lambda: leased(line, 0), within=10)
    assert await line.ack(first.lease) != [ACKED]  # it had happened
    assert (await line.counts()).acked == 1
    # Its place goes after its leases: the ack that nobody heard of also asked for more, and so it stood in line.
    assert payloads(await line.take(1, wait_ms=5_000)) == [second.message.payload]


async def test_a_stream_that_begins_while_the_store_is_down_is_told(shaky: Line, proxy: ReplyProxy) -> None:
    await shaky.create()
    proxy.cut()
    async with Consuming(shaky, 2) as stream:
        await ends_in_trouble(stream)
