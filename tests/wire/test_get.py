"""Get: leases from the head, waits for the first, settles earlier leases in the same step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import grpc
import pytest

from harness import ServiceProcess, eventually, refused
from headway.v1 import admin_service_pb2, queue_service_pb2, queue_service_pb2_grpc
from wire.calls import (
    ACKED,
    ALREADY_ACKED,
    FAILED_PRECONDITION,
    GONE,
    INVALID_ARGUMENT,
    NOT_FOUND,
    SLACK_S,
    STALE,
    UNIMPLEMENTED,
    Delivery,
    Keys,
    Line,
    leases,
    message,
    now_ms,
    payloads,
    span,
)

MAX_BATCH = 1_000


async def consumers_wait(line: Line, count: int) -> bool:
    return (await line.describe()).counts.consumers_waiting == count


async def settled(line: Line, *tokens: str, wait_ms: float = 0) -> list[int]:
    return [result.settled for result in (await line.get(ack=tokens, wait_ms=wait_ms)).settled]


# What is leased.


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


# Fields.


@pytest.mark.parametrize("count", [1, MAX_BATCH])
async def test_a_batch_up_to_the_largest_is_given(line: Line, count: int) -> None:
    await line.create()
    await line.put(*(b"x" for _ in range(MAX_BATCH)))
    assert len((await line.get(count)).deliveries) == count


@pytest.mark.parametrize("count", [MAX_BATCH + 1, 4_294_967_295])
async def test_a_batch_above_the_largest_is_refused(line: Line, count: int) -> None:
    await line.create()
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.get(count)
    assert list(said.violations) == ["max_messages"]


@pytest.mark.parametrize("wait_ms", [-1, -0.000001, 3_600_001])
async def test_a_wait_out_of_its_range_is_refused(line: Line, wait_ms: float) -> None:
    await line.create()
    request = queue_service_pb2.GetRequest(queue=line.name, wait=span(wait_ms))
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.stub.Get(request, timeout=SLACK_S)
    assert list(said.violations) == ["wait"]


@pytest.mark.parametrize("lease_ms", [-1, 0, 99, 99.999999, 12 * 3_600_000 + 1])
async def test_a_lease_out_of_its_range_is_refused_and_nothing_leased(line: Line, lease_ms: float) -> None:
    await line.create()
    await line.put(b"one")
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.get(lease_ms=lease_ms)
    assert list(said.violations) == ["lease"]
    assert (await line.counts()).leased == 0


@pytest.mark.parametrize("lease_ms", [100, 12 * 3_600_000])
async def test_a_lease_up_to_its_bounds_is_given(line: Line, keys: Keys, lease_ms: float) -> None:
    await line.create()
    await line.put(b"one")
    delivery = await line.take_one(lease_ms=lease_ms)
    assert abs(delivery.lease_expires_at.ToMilliseconds() - lease_ms - now_ms(keys.client)) < 5_000


@pytest.mark.parametrize("size", [200, 201])
async def test_a_consumers_name_has_at_most_200_bytes(line: Line, size: int) -> None:
    await line.create()
    await line.put(b"one")
    if size > 200:
        with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
            await line.get(consumer="c" * size)
        assert list(said.violations) == ["consumer"]
    else:
        await line.get(consumer="c" * size)
        assert (await line.describe()).roles.consumer.holder == "c" * size


@pytest.mark.parametrize(
    ("field", "value"), [("stand", True), ("place", "p"), ("attempt_id", "a")], ids=["stand", "place", "attempt_id"]
)
async def test_what_is_not_served_yet_is_refused_by_name_and_nothing_leased(
    line: Line, field: str, value: object
) -> None:
    await line.create()
    await line.put(b"one")
    with refused("NOT_IMPLEMENTED", UNIMPLEMENTED) as said:
        await line.get(**{field: value})  # type: ignore[arg-type]
    assert said.metadata == {"field": field}
    assert (await line.counts()).leased == 0


# Settling in the same call.


async def test_earlier_leases_are_acked_in_the_same_call(line: Line) -> None:
    await line.create()
    await line.put(b"1", b"2", b"3")
    first = await line.take(2)
    answer = await line.get(ack=leases(first))
    assert [result.settled for result in answer.settled] == [ACKED, ACKED]
    assert [result.lease for result in answer.settled] == leases(first)
    assert payloads(answer.deliveries) == [b"3"]
    counts = await line.counts()
    assert (counts.acked, counts.leased) == (2, 1)


async def test_earlier_leases_are_acked_though_nothing_is_leased(line: Line) -> None:
    await line.create()
    await line.put(b"1", b"2")
    taken = await line.take(2)
    assert await settled(line, taken[0].lease) == [ACKED]
    assert await settled(line, taken[0].lease, taken[1].lease, "made-up") == [ALREADY_ACKED, ACKED, GONE]
    assert (await line.counts()).acked == 2


async def test_a_waiting_get_settles_at_once_and_not_only_when_it_ends(line: Line) -> None:
    await line.create()
    await line.put(b"1")
    lease = (await line.take_one()).lease
    waiting = asyncio.create_task(line.get(wait_ms=20_000, ack=[lease]))
    await eventually(lambda: is_acked(line, 1))
    assert not waiting.done()
    await line.put(b"2")
    answer = await asyncio.wait_for(waiting, 10)
    assert ([result.settled for result in answer.settled], payloads(answer.deliveries)) == ([ACKED], [b"2"])


async def is_acked(line: Line, count: int) -> bool:
    return (await line.describe()).counts.acked == count


async def test_a_call_that_settles_answers_with_that_and_not_with_an_error(line: Line) -> None:
    assert line.admin is not None
    await line.create()
    await line.put(b"1", b"2", b"3")
    one, two, three = await line.take(3)
    await line.admin.Pause(admin_service_pb2.PauseRequest(queue=line.name), timeout=SLACK_S)
    assert await settled(line, one.lease) == [ACKED]
    await line.admin.Resume(admin_service_pb2.ResumeRequest(queue=line.name), timeout=SLACK_S)
    await line.close()
    assert await settled(line, two.lease) == [ACKED]
    assert await settled(line, three.lease, wait_ms=5_000) == [ACKED]  # now it is drained
    with refused("QUEUE_DRAINED", FAILED_PRECONDITION):
        await line.get()


async def test_a_stale_lease_is_told_and_the_rest_goes_on(line: Line) -> None:
    await line.create()
    await line.put(b"1", b"2")
    old = await line.take_one()
    await line.delay(old.lease, delay_ms=0)
    new = await line.take_one()
    answer = await line.get(ack=[old.lease, new.lease])
    assert [result.settled for result in answer.settled] == [STALE, ACKED]
    assert payloads(answer.deliveries) == [b"2"]


@pytest.mark.parametrize("count", [MAX_BATCH, MAX_BATCH + 1])
async def test_so_many_leases_can_be_settled_at_once(line: Line, count: int) -> None:
    await line.create()
    if count > MAX_BATCH:
        with refused("TOO_LARGE", INVALID_ARGUMENT) as said:
            await line.get(ack=["x"] * count)
        assert said.metadata == {"field": "ack", "limit": str(MAX_BATCH), "size": str(count)}
    else:
        await line.put(*(b"x" for _ in range(count)))
        assert await settled(line, *leases(await line.take(count))) == [ACKED] * count


# Waiting.


async def test_a_get_waits_as_long_as_it_said(line: Line, keys: Keys) -> None:
    await line.create()
    before = now_ms(keys.client)
    assert (await line.get(wait_ms=300)).deliveries == []
    assert 290 <= now_ms(keys.client) - before < 5_000


async def test_a_get_that_waits_past_its_deadline_is_answered_before_it(line: Line) -> None:
    await line.create()
    request = queue_service_pb2.GetRequest(queue=line.name, wait=span(60_000))
    started = time.monotonic()
    assert list((await line.stub.Get(request, timeout=1)).deliveries) == []
    assert 0.5 < time.monotonic() - started < 1
    await eventually(lambda: consumers_wait(line, 0))


async def test_waiting_gets_are_served_first_come_first_served(line: Line) -> None:
    await line.create()
    waiting = []
    for number in range(5):
        waiting.append(asyncio.create_task(line.get(wait_ms=30_000)))
        await eventually(lambda count=number: consumers_wait(line, count + 1))  # type: ignore[misc]
    for number in range(5):
        await line.put(b"%d" % number)
    answers = await asyncio.wait_for(asyncio.gather(*waiting), 10)
    assert [payloads(answer.deliveries) for answer in answers] == [[b"%d" % number] for number in range(5)]


async def test_one_put_of_many_serves_all_who_wait(line: Line) -> None:
    await line.create()
    waiting = [asyncio.create_task(line.get(2, wait_ms=30_000)) for _ in range(4)]
    await eventually(lambda: consumers_wait(line, 4))
    await line.put(*(b"%d" % number for number in range(8)))
    answers = await asyncio.wait_for(asyncio.gather(*waiting), 10)
    got = sorted(payload for answer in answers for payload in payloads(answer.deliveries))
    assert got == [b"%d" % number for number in range(8)]
    assert all(answer.deliveries for answer in answers)


async def test_waiting_gets_need_no_connection_each(line: Line, keys: Keys) -> None:
    await line.create()
    others = [Line(line.stub, f"{line.name}-{number}") for number in range(50)]
    for other in others:
        await other.create()
    before = keys.connections()
    waiting = [asyncio.create_task(one.get(wait_ms=60_000)) for one in (line, *others) for _ in range(4)]
    await eventually(lambda: consumers_wait(others[-1], 4), within=20)
    assert keys.connections() <= before + 20  # for 204 calls that wait
    for call in waiting:
        call.cancel()
    await asyncio.wait(waiting)
    for other in others:
        await other.delete()


@pytest.mark.parametrize("wait_ms", [0, 20_000])
async def test_a_paused_queue_gives_nothing_and_a_waiting_get_waits_for_the_resume(line: Line, wait_ms: float) -> None:
    assert line.admin is not None
    await line.create()
    await line.put(b"one")
    await line.admin.Pause(admin_service_pb2.PauseRequest(queue=line.name), timeout=SLACK_S)
    if not wait_ms:
        with refused("QUEUE_PAUSED", FAILED_PRECONDITION) as said:
            await line.get()
        assert said.metadata == {"queue": line.name}
        return
    waiting = asyncio.create_task(line.get(wait_ms=wait_ms))
    await eventually(lambda: consumers_wait(line, 1))
    await line.admin.Resume(admin_service_pb2.ResumeRequest(queue=line.name), timeout=SLACK_S)
    assert payloads((await asyncio.wait_for(waiting, 10)).deliveries) == [b"one"]


# Callers that go away.


async def test_a_cancelled_waiting_get_takes_nothing(line: Line) -> None:
    await line.create()
    waiting = asyncio.create_task(line.get(wait_ms=30_000))
    await eventually(lambda: consumers_wait(line, 1))
    waiting.cancel()
    await eventually(lambda: consumers_wait(line, 0))
    await line.put(b"one")
    delivery = await line.take_one()
    assert (delivery.message.payload, delivery.attempt) == (b"one", 1)
    assert (await line.counts()).leased == 1


async def test_a_get_cancelled_as_its_message_comes_loses_nothing(line: Line) -> None:
    # An answer that was on its way when its caller left is known to nobody: then the lease must lapse.
    await line.create(lease=span(500))
    rounds = 60
    for number in range(rounds):
        waiting = asyncio.create_task(line.get(wait_ms=30_000))
        await eventually(lambda: consumers_wait(line, 1))
        putting = asyncio.create_task(line.put(b"%d" % number))
        # At a different moment each round, before, while and after the message is leased.
        for _ in range(number % 12):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting, putting})
        if waiting.cancelled():
            delivery = await line.take_one(wait_ms=10_000, lease_ms=60_000)
        else:
            [delivery] = waiting.result().deliveries
        assert delivery.message.payload == b"%d" % number
        assert await line.ack(delivery.lease) == [ACKED]
    counts = await line.counts()
    assert (counts.length, counts.leased, counts.acked) == (0, 0, rounds)


async def test_a_connection_cut_while_its_gets_wait_takes_nothing(
    line: Line, connect: Callable[[str], grpc.aio.Channel], service: ServiceProcess
) -> None:
    await line.create(lease=span(600_000))
    channel = connect(service.address)
    other = Line(queue_service_pb2_grpc.QueueServiceStub(channel), line.name)
    calls = [asyncio.create_task(other.get(wait_ms=30_000)) for _ in range(3)]
    await eventually(lambda: consumers_wait(line, 3))
    await channel.close()
    await eventually(lambda: consumers_wait(line, 0))
    await asyncio.wait(calls)
    await line.put(b"one", b"two")
    assert [(one.message.payload, one.attempt) for one in await line.take(2)] == [(b"one", 1), (b"two", 1)]


async def test_a_connection_cut_as_its_messages_come_loses_none(
    line: Line, connect: Callable[[str], grpc.aio.Channel], service: ServiceProcess
) -> None:
    # An answer that was on its way when the connection was cut is known to nobody: then the lease must lapse.
    await line.create(lease=span(500))
    for number in range(15):
        channel = connect(service.address)
        other = Line(queue_service_pb2_grpc.QueueServiceStub(channel), line.name)
        calls = [asyncio.create_task(other.get(wait_ms=30_000)) for _ in range(3)]
        await eventually(lambda: consumers_wait(line, 3))
        putting = asyncio.create_task(line.put(b"one", b"two"))
        for _ in range(number % 8):
            await asyncio.sleep(0)
        await channel.close()
        await putting
        done, _ = await asyncio.wait(calls)
        received: list[Delivery] = []
        for call in done:
            if not call.cancelled() and call.exception() is None:
                received += call.result().deliveries
        while len(received) < 2:
            received.append(await line.take_one(wait_ms=10_000, lease_ms=60_000))
        assert sorted(payloads(received)) == [b"one", b"two"]
        assert await line.ack(*leases(received)) == [ACKED, ACKED]
    counts = await line.counts()
    assert (counts.length, counts.leased, counts.acked) == (0, 0, 30)


async def test_leases_of_callers_that_went_come_back_to_the_head_in_ticket_order(line: Line) -> None:
    # An answer that was on its way when its caller went is known to nobody: that lease must lapse.
    await line.create(lease=span(500))
    await line.put(*(b"%d" % number for number in range(20)))
    for _ in range(10):
        call = line.stub.Get(queue_service_pb2.GetRequest(queue=line.name, max_messages=5), timeout=SLACK_S)
        await asyncio.sleep(0)
        call.cancel()
    await eventually(lambda: all_are_back(line, 20))
    deliveries = await line.take(20, lease_ms=60_000)
    assert payloads(deliveries) == [b"%d" % number for number in range(20)]


async def all_are_back(line: Line, count: int) -> bool:
    counts = await line.counts()
    return (counts.length, counts.leased) == (count, 0)


async def test_a_settling_get_whose_caller_goes_away_has_settled(line: Line) -> None:
    await line.create()
    await line.put(b"one")
    lease = (await line.take_one()).lease
    waiting = asyncio.create_task(line.get(wait_ms=30_000, ack=[lease]))
    await eventually(lambda: is_acked(line, 1))
    waiting.cancel()
    assert await line.ack(lease) == [ALREADY_ACKED]


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
