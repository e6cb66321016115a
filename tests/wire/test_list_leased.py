"""ListLeased: who works on what, those first whose lease ends first."""

from __future__ import annotations

import uuid

import pytest

from harness import eventually, refused
from headway.v1 import admin_service_pb2, queue_pb2, queue_service_pb2
from headway.v1.admin_service_pb2 import LeasedMessage
from headway.v1.message_pb2 import Progress
from wire.calls import EXTENDED, INVALID_ARGUMENT, NOT_FOUND, SLACK_S, Delivery, Line, Message, span
from wire.operators import admin_of, assert_sound

MAX_BATCH = 1_000


async def list_leased(line: Line, max_messages: int = 100) -> list[LeasedMessage]:
    request = admin_service_pb2.ListLeasedRequest(queue=line.name, max_messages=max_messages)
    return list((await admin_of(line).ListLeased(request, timeout=SLACK_S)).messages)


async def take(
    line: Line, count: int = 1, *, consumer: str = "", lease_ms: float = 60_000, attempt_id: str = ""
) -> list[Delivery]:
    request = queue_service_pb2.GetRequest(
        queue=line.name, max_messages=count, consumer=consumer, lease=span(lease_ms), attempt_id=attempt_id
    )
    return list((await line.stub.Get(request, timeout=SLACK_S)).deliveries)


async def test_an_unknown_queue_is_not_found(line: Line) -> None:
    with refused("QUEUE_NOT_FOUND", NOT_FOUND):
        await list_leased(line)


async def test_who_works_on_what_is_told(line: Line) -> None:
    await line.create()
    await line.put(Message(id="named", payload=b"1"), b"2", b"3")
    (one,) = await take(line, consumer="worker Ä", lease_ms=60_000)
    (two,) = await take(line, lease_ms=30_000)
    extend = queue_service_pb2.ExtendRequest(
        queue=line.name, leases=[one.lease], lease=span(90_000), progress=Progress(fraction=0.25, note="page 1")
    )
    await line.stub.Extend(extend, timeout=SLACK_S)

    second, first = await list_leased(line)

    assert (first.id, first.ticket, first.consumer, first.attempt) == ("named", 1, "worker Ä", 1)
    assert (first.progress.fraction, first.progress.note) == (0.25, "page 1")
    assert first.leased_at.ToMilliseconds() == one.lease_expires_at.ToMilliseconds() - 60_000
    assert first.lease_expires_at.ToMilliseconds() > one.lease_expires_at.ToMilliseconds()
    assert first.put_at == one.put_at
    assert (second.id, second.ticket, second.consumer[:8]) == (two.message.id, 2, "headway/")
    assert second.lease_expires_at == two.lease_expires_at
    assert not second.HasField("progress")


async def test_what_is_settled_or_given_back_is_not_leased(line: Line) -> None:
    await line.create()
    await line.put(b"1", b"2", b"3")
    acked, released, kept = await take(line, 3, consumer="me")
    await line.ack(acked.lease)
    await line.delay(released.lease, delay_ms=0, reason="not now")

    assert [one.ticket for one in await list_leased(line)] == [kept.ticket]
    (waits,) = await line.peek(10)
    assert (waits.failures, waits.last_error) == (1, "not now")  # nothing of its holder is left
    await assert_sound(line)


async def test_the_next_attempt_has_its_own_holder(line: Line) -> None:
    await line.create(time_to_live=span(3_600_000))
    await line.put(Message(id="m", payload=b"x"))
    (first,) = await take(line, consumer="first")
    await line.delay(first.lease, delay_ms=0, reason="broken")
    await take(line, consumer="second", attempt_id="again")
    await take(line, consumer="whoever", attempt_id="again")  # the same leases once more

    (leased,) = await list_leased(line)

    assert (leased.id, leased.consumer, leased.attempt) == ("m", "second", 2)
    await assert_sound(line)


async def test_of_a_lease_that_was_taken_up_again_no_consumer_is_known(line: Line) -> None:
    await line.create(retry=queue_pb2.Retry(max_attempts=3))
    await line.put(b"x")
    (late,) = await take(line, consumer="late", lease_ms=100)
    await eventually(line.peek)  # it has lapsed
    (result,) = await line.extend(late.lease)
    assert result.settled == EXTENDED

    (leased,) = await list_leased(line)

    assert (leased.consumer, leased.ticket) == ("", late.ticket)
    await assert_sound(line)


@pytest.mark.parametrize(("asked", "told"), [(0, 1), (1, 1), (2, 2), (MAX_BATCH, 3)])
async def test_it_lists_as_many_as_asked(line: Line, asked: int, told: int) -> None:
    await line.create()
    await line.put(b"1", b"2", b"3")
    await take(line, 3, consumer=uuid.uuid4().hex)
    assert len(await list_leased(line, asked)) == told


async def test_more_than_a_batch_is_refused(line: Line) -> None:
    await line.create()
    with refused("FIELD_INVALID", INVALID_ARGUMENT):
        await list_leased(line, MAX_BATCH + 1)


async def test_a_queue_that_nobody_took_from_has_none(line: Line) -> None:
    await line.create()
    await line.put(b"1")
    assert await list_leased(line) == []
