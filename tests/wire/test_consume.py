"""Consume: leases within the credit, settled on the same stream, in turns with everybody, and given back at its end."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import grpc
import redis

from harness import eventually, refused
from headway.v1 import admin_service_pb2, queue_pb2, queue_service_pb2
from wire.calls import (
    ACKED,
    ALREADY_ACKED,
    DELAYED,
    EXTENDED,
    GONE,
    NOT_FOUND,
    RELEASED,
    STALE,
    Keys,
    Line,
    Message,
    leases,
    payloads,
    span,
)
from wire.conditions import consumers_wait, leased
from wire.flows import Consuming, ends
from wire.streams import Standing


async def test_what_waits_is_delivered_within_the_credit_and_goes_on_with_every_ack(line: Line) -> None:
    await line.create()
    await line.put(*(b"%d" % number for number in range(10)))
    async with Consuming(line, 4) as stream:
        assert payloads(await stream.taken(4)) == [b"0", b"1", b"2", b"3"]
        assert len(stream.seen) == 1  # one batch
        assert (await line.counts()).leased == 4
        await stream.ack(*(await stream.tokens(4))[:3])
        assert payloads((await stream.taken(7))[4:]) == [b"4", b"5", b"6"]
        assert ends(await stream.results(3)) == [ACKED] * 3
        assert (await line.counts()).leased == 4
        assert (await line.counts()).acked == 3
        answered = stream.seen[1]  # settling and the next leases are one step, and one answer
        assert (len(answered.deliveries), len(answered.settled)) == (3, 3)


async def test_a_batch_is_bounded_by_what_an_answer_may_hold_and_the_rest_follows(line: Line) -> None:
    await line.create()
    for number in range(8):
        await line.put(b"%d" % number * 1_000_000)
    async with Consuming(line, 1_000) as stream:
        await stream.taken(8)
        assert [len(one.deliveries) for one in stream.seen if one.deliveries] == [3, 3, 2]
    await eventually(lambda: leased(line, 0))
    assert (await line.counts()).length == 8


async def test_a_foreign_frame_with_damaged_headers_comes_without_them_among_others(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(*(Message(id=f"m{number}", payload=b"body", headers={"k": f"v{number}"}) for number in range(12)))
    raw: Any = keys.client
    elements = raw.lrange(keys[""], 0, -1)[::-1]
    await line.delete()
    elements[4] = elements[4].replace(b"v4", b"\xff\xff")  # no text
    elements[6] = elements[6].replace(b"\x1a\x07\n\x01k", b"\x1a\x70\n\x01k")  # longer than all there is
    elements[8] = elements[8].replace(b"\x1a\x07\n\x01k\x12\x02v8", b"\n\x03odd\x12\x02no")  # an id and a payload
    keys.create(*elements)
    async with Consuming(line, 100) as stream:
        messages = [delivery.message for delivery in await stream.taken(12)]
    assert [message.id for message in messages] == [f"m{number}" for number in range(12)]
    assert {message.payload for message in messages} == {b"body"}
    damaged = {4, 6, 8}
    assert [dict(message.headers) for message in messages] == [
        {} if number in damaged else {"k": f"v{number}"} for number in range(12)
    ]


async def test_all_ways_of_settling_work_on_the_stream_with_results_in_order(line: Line) -> None:
    await line.create()
    await line.put(*(b"%d" % number for number in range(5)))
    async with Consuming(line, 5) as stream:
        one, two, three, four, five = await stream.taken(5)
        await stream.extend(one.lease, "made-up", lease_ms=3_600_000)
        await stream.delay(two.lease, delay_ms=3_600_000, reason="later")
        await stream.ack(three.lease, result=b"a result")
        await stream.ack(one.lease, one.lease)
        await stream.delay(four.lease, delay_ms=0, keep_attempt=True, queue=line.name)
        await stream.extend(four.lease)
        results = await stream.results(8)
        assert [result.lease for result in results] == [
            *(one.lease, "made-up", two.lease, three.lease, one.lease, one.lease, four.lease, four.lease)
        ]
        assert ends(results) == [EXTENDED, GONE, DELAYED, ACKED, ACKED, ALREADY_ACKED, RELEASED, STALE]
        again = (await stream.taken(6))[5]
        assert (again.message.payload, again.attempt) == (b"3", 1)
        counts = await line.counts()
        assert (counts.leased, counts.delayed, counts.acked) == (2, 1, 2)
        assert five.lease in {delivery.lease for delivery in stream.deliveries}


async def test_a_step_that_postpones_by_id_beside_foreign_clients_does_not_end_the_stream(
    line: Line, keys: Keys
) -> None:
    await line.create()
    await line.put(b"0", b"1", b"2", Message(id="m", payload=b"3"))
    async with Consuming(line, 3) as stream:
        one, two, three = await stream.taken(3)
        for role in ("producer", "consumer"):
            assert keys.client.rpop(keys[f"{role}_free"]) is not None
        try:
            await stream.delay(one.lease, message_ids=["m"], delay_ms=3_600_000)
            await stream.ack(two.lease)
            results = await stream.results(3)
        finally:
            for role in ("producer", "consumer"):
                keys.client.lpush(keys[f"{role}_free"], 0)
        assert [(result.lease, result.id) for result in results] == [(one.lease, ""), ("", "m"), (two.lease, "")]
        assert ends(results) == [DELAYED, STALE, ACKED]
        assert payloads(await stream.taken(4)) == [b"0", b"1", b"2", b"3"]
        await stream.ack(three.lease)
        assert ends(await stream.results(4))[3] == ACKED


async def test_messages_are_postponed_by_id_on_the_stream(line: Line) -> None:
    await line.create()
    await line.put(Message(id="a", payload=b"1"))
    async with Consuming(line) as stream:
        await stream.delay(delay_ms=3_600_000, message_ids=["a", "b"])
        results = await stream.results(2)
        assert [(one.id, one.settled) for one in results] == [("a", DELAYED), ("b", GONE)]


async def test_acks_that_come_one_by_one_are_all_answered_in_order(line: Line) -> None:
    await line.create()
    await line.put(*(b"%d" % number for number in range(500)))
    async with Consuming(line, 100) as stream:
        for number in range(500):
            await stream.ack((await stream.tokens(number + 1))[number])
        results = await stream.results(500)
        assert [one.lease for one in results] == leases(stream.deliveries)
        assert set(ends(results)) == {ACKED}
    assert (await line.counts()).acked == 500


async def test_whole_batches_are_acked_in_any_order_and_each_once(line: Line) -> None:
    await line.create()
    for start in range(0, 400, 100):
        await line.put(*(b"%d" % number for number in range(start, start + 100)))
    async with Consuming(line, 100) as stream:
        one = await stream.tokens(100)
        made_up = one[50][:-1] + ("A" if one[50][-1] != "A" else "B")
        among, twice = [*one[40:50], made_up, *one[50:60]], [*one[20:30], *one[20:30]]
        asked = [one[:20], one[:20], among, twice, one[80:50:-1], one[30:40], one[80:]]
        for part in asked:
            await stream.ack(*part)
        results = await stream.results(sum(map(len, asked)))
        assert [result.lease for result in results] == [lease for part in asked for lease in part]
        settled: set[str] = set()
        for result in results:
            expected = STALE if result.lease == made_up else ALREADY_ACKED if result.lease in settled else ACKED
            assert result.settled == expected
            settled.add(result.lease)
        assert settled == {*one, made_up}
        two = (await stream.tokens(200))[100:]
        assert len(set(two)) == len(two) == 100
        assert (await line.counts()).leased == 100
        for part in (two[50:], two[:50]):
            await stream.ack(*part)
        await stream.tokens(300)
        assert (await line.counts()).leased == 100
    await eventually(lambda: leased(line, 0))
    counts = await line.counts()
    assert (counts.acked, counts.length) == (200, 200)


async def test_a_stream_that_waits_is_told_its_place_and_how_it_moves(line: Line) -> None:
    await line.create(limit=7)
    async with Standing(line) as first, Consuming(line, 10) as stream:
        told = await stream.position(2)
        assert (told.length, told.limit, told.place) == (2, 7, "")
        assert told.poll_max.ToMilliseconds() > told.poll_min.ToMilliseconds() > 0
        assert not told.eta.known
        async with Consuming(line, 10) as third:
            await third.position(3)
            await first.end()
            await stream.position(1)
            await third.position(2)
            assert [one.position for one in stream.places] == [2, 1]


async def test_a_place_on_a_stream_has_the_hints_of_the_queues_policy(line: Line) -> None:
    await line.create(poll=queue_pb2.Poll(base=span(5_000), per_position=span(2_000)))
    async with Standing(line) as first, Consuming(line, 10) as stream:
        told = await stream.position(2)
        assert (told.poll_min.ToMilliseconds(), told.poll_max.ToMilliseconds()) == (7_000, 17_000)
        await line.update(poll=queue_pb2.Poll(base=span(9_000)))
        await first.end()
        told = await stream.position(1)
        assert (told.poll_min.ToMilliseconds(), told.poll_max.ToMilliseconds()) == (9_000, 19_000)


async def test_streams_take_turns_with_everybody_in_line(line: Line) -> None:
    await line.create()
    async with Consuming(line, 10) as first:
        await first.position(1)
        second = asyncio.create_task(line.get(wait_ms=10_000))
        await eventually(lambda: consumers_wait(line, 2))
        async with Consuming(line, 10) as third:
            await third.position(3)
            await line.put(b"1")
            assert payloads(await first.taken(1)) == [b"1"]
            await line.put(b"2")
            assert payloads((await second).deliveries) == [b"2"]
            await line.put(b"3")
            assert payloads(await third.taken(1)) == [b"3"]


async def test_a_stream_takes_nothing_that_one_in_line_could_have(line: Line) -> None:
    await line.create(limit=1)
    await line.put(b"1", b"2")
    held = await line.take_one()
    async with Standing(line) as standing:
        await standing.position(1)
        async with Consuming(line, 10) as stream:
            await stream.position(2)
            await line.ack(held.lease)
            assert payloads(await standing.granted()) == [b"2"]
            assert not stream.deliveries


async def test_a_holder_that_settles_on_its_stream_keeps_its_slot(line: Line) -> None:
    await line.create(limit=1)
    await line.put(b"1", b"2", b"3")
    async with Consuming(line, 1) as stream:
        await stream.taken(1)
        async with Consuming(line, 1) as other:
            await other.position(1)
            for number in (1, 2):
                await stream.ack((await stream.tokens(number))[-1])
                await stream.taken(number + 1)
            assert not other.deliveries
            await stream.credit(0)
            await stream.ack((await stream.tokens(3))[2])
            await line.put(b"4")
            assert payloads(await other.taken(1)) == [b"4"]


async def test_there_are_never_more_leases_than_slots(line: Line) -> None:
    await line.create(limit=3)
    await line.put(*(b"%d" % number for number in range(20)))
    async with Consuming(line, 10) as stream, Consuming(line, 10) as other:
        await stream.until(lambda: len(stream.deliveries) + len(other.deliveries) == 3)
        assert (await line.counts()).leased == 3


async def test_a_paused_queue_is_waited_for(line: Line, admin: Any) -> None:
    await line.create()
    await line.put(b"1")
    await admin.Pause(admin_service_pb2.PauseRequest(queue=line.name), timeout=10)
    async with Consuming(line, 1) as stream:
        await stream.position(1)
        await admin.Resume(admin_service_pb2.ResumeRequest(queue=line.name), timeout=10)
        assert payloads(await stream.taken(1)) == [b"1"]


async def test_at_the_drain_the_stream_says_so_and_ends_well(line: Line) -> None:
    await line.create()
    await line.put(b"1", b"2")
    async with Consuming(line, 1) as stream:
        await stream.taken(1)
        async with Consuming(line, 5) as waiting:
            await waiting.taken(1)
            await line.close()
            await waiting.ack(*await waiting.tokens(1))
            await stream.ack(*await stream.tokens(1))
            for each in (stream, waiting):
                last = (await each.ended())[-1]
                assert last.drained
                assert [one.drained for one in each.seen].count(True) == 1
                assert ends(each.settled) == [ACKED]
        assert (await line.counts()).acked == 2
    async with Consuming(line, 1) as late:
        assert [one.drained for one in await late.ended()] == [True]


async def test_a_queue_that_is_not_there_is_an_error(line: Line) -> None:
    async with Consuming(line, 1) as stream:
        with refused("QUEUE_NOT_FOUND", NOT_FOUND) as said:
            await stream.ended()
        assert said.metadata == {"queue": line.name}


async def test_a_queue_that_is_deleted_ends_the_stream(line: Line) -> None:
    await line.create()
    await line.put(b"1")
    async with Consuming(line, 2) as waiting:
        await waiting.taken(1)
        async with Consuming(line, 1) as second:
            await second.position(2)
            await line.delete()
            for stream in (waiting, second):
                with refused("QUEUE_DELETED", NOT_FOUND):
                    await stream.ended()


async def test_what_was_leased_of_a_deleted_queue_is_gone_and_then_the_stream_ends(line: Line) -> None:
    await line.create()
    await line.put(b"1")
    async with Consuming(line, 1) as stream:
        await stream.taken(1)
        await line.delete()
        await stream.ack(*await stream.tokens(1))
        with refused("QUEUE_DELETED", NOT_FOUND):
            await stream.ended()
        assert ends(stream.settled) == [GONE]


async def test_a_queue_that_was_made_anew_owes_the_old_leases_nothing(line: Line) -> None:
    await line.create()
    await line.put(b"old")
    async with Consuming(line, 1) as stream:
        await stream.taken(1)
        await line.delete()
        await line.create()
        await line.put(b"new")
        await stream.ack(*await stream.tokens(1))
        assert ends(await stream.results(1)) == [GONE]
        with refused("QUEUE_DELETED"):
            await stream.ended()
    assert payloads(await line.take(1)) == [b"new"]


async def test_leases_of_the_stream_may_be_settled_by_ordinary_calls(line: Line) -> None:
    await line.create()
    await line.put(b"1", b"2")
    async with Consuming(line, 1) as stream:
        [first] = await stream.taken(1)
        assert await line.ack(first.lease) == [ACKED]
        await stream.ack(first.lease)  # the stream learns of it so
        assert ends(await stream.results(1)) == [ALREADY_ACKED]
        await stream.taken(2)


async def test_half_closing_settles_what_was_asked_then_ends_and_gives_back(line: Line) -> None:
    await line.create()
    await line.put(*(b"%d" % number for number in range(6)))
    async with Consuming(line, 5) as stream:
        held = await stream.taken(5)
        for one in held[:3]:
            await stream.ack(one.lease)
        await stream.delay(held[3].lease, delay_ms=3_600_000)
        await stream.done()
        await stream.ended()
        assert ends(stream.settled) == [ACKED, ACKED, ACKED, DELAYED]
        await eventually(lambda: leased(line, 0), within=1)
        counts = await line.counts()
        # What an ack leased on the way is given back, too.
        assert (counts.acked, counts.delayed, counts.length) == (3, 1, 2)
    assert [(one.message.payload, one.attempt) for one in await line.take(2)] == [(b"4", 1), (b"5", 1)]


async def test_role_in_use_is_waited_out_as_by_everybody(line: Line, keys: Any) -> None:
    await line.create()
    await line.put(b"1")
    token = keys.client.lpop(keys["consumer_free"])  # a foreign consumer holds the role
    assert token is not None
    async with Consuming(line, 1) as stream:
        await stream.position(1)
        assert not stream.deliveries
        keys.client.lpush(keys["consumer_free"], token)
        assert payloads(await stream.taken(1)) == [b"1"]


async def test_the_first_answer_may_be_read_by_a_plain_client(line: Line) -> None:
    await line.create()
    await line.put(b"1")
    start = queue_service_pb2.ConsumeStart(queue=line.name, credit=queue_service_pb2.Credit(messages=1))
    call = line.stub.Consume(timeout=10)
    await call.write(queue_service_pb2.ConsumeRequest(start=start))
    answer = await call.read()
    assert isinstance(answer, queue_service_pb2.ConsumeResponse)
    assert payloads(answer.deliveries) == [b"1"]
    call.cancel()
    assert await call.code() is grpc.StatusCode.CANCELLED


async def test_one_who_alone_stands_in_line_takes_four_steps_of_the_store_for_a_message(
    line: Line, redis_client: redis.Redis
) -> None:
    """They put it, give it, stand in line again, and settle. What was in vain a moment ago is not tried again.

    What a message costs comes back each time. What the service asks the store from time to time counts as well, so of
    three times the least is taken: a core that was away for a moment is in one of them.
    """
    rounds = 20
    numbers = itertools.count(1)
    await line.create()

    def steps() -> int:
        return int(redis_client.info("commandstats")["cmdstat_evalsha"]["calls"])

    async def take_turns() -> int:
        before = steps()
        for number in itertools.islice(numbers, rounds):
            await line.put(b"%d" % number)
            await stream.taken(number)
            await stream.ack((await stream.tokens(number))[-1])
            await stream.results(number)
        return steps() - before

    async with Consuming(line, 4) as stream:
        await eventually(lambda: consumers_wait(line, 1))
        taken = [await take_turns() for _ in range(3)]
    assert min(taken) < 4.5 * rounds, f"{taken} steps for {rounds} messages each"
