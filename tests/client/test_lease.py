"""A lease keeps itself alive inside its block, and the end of the block settles it."""

import asyncio
from datetime import timedelta

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

import headway
from client.fake_service import Failure, FakeQueue, FakeService
from headway._lease import Lease
from headway.core import connecting
from headway.core.error import from_status
from headway.v1.message_pb2 import Delivery, Settled, SettleResult

AWAY = Failure(code=grpc.StatusCode.UNAVAILABLE, reason="STORE_UNAVAILABLE")
SILENT = Failure(code=grpc.StatusCode.UNAVAILABLE, is_silent=True)
SOON = timedelta(seconds=5)


class _Broken(Exception):
    pass


async def test_clean_end_acks(queue: headway.Queue, made: FakeQueue) -> None:
    await queue.put(b"x", id="a", headers={"k": "v"})
    async with queue.lease() as lease:
        assert lease is not None
        assert (lease.payload, lease.id, dict(lease.headers)) == (b"x", "a", {"k": "v"})
        assert (lease.attempt, lease.ticket) == (1, 1)
        assert lease.token in made.leased
        assert not lease.is_settled
    assert lease.is_settled
    assert [m.id for m in made.acked] == ["a"]


async def test_nothing_there_is_none(queue: headway.Queue) -> None:
    async with queue.lease() as lease:
        assert lease is None


async def test_exception_delays_with_its_type_as_reason(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put(b"x")
    with pytest.raises(_Broken):
        async with queue.lease():
            raise _Broken("a secret")
    request = service.requests("Delay")[0]
    assert request.reason.endswith("_Broken")
    assert "secret" not in request.reason
    assert request.WhichOneof("available") is None
    assert not request.keep_attempt
    assert made.delayed[0].attempt == 2


async def test_cancellation_gives_back_now_and_for_free(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put(b"x")
    inside = asyncio.Event()

    async def hold() -> None:
        async with queue.lease():
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(hold())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert service.requests("Delay")[0].keep_attempt
    assert len(made.line) == 1


async def test_what_comes_after_the_ack_does_nothing(service: FakeService, queue: headway.Queue) -> None:
    await queue.put(b"x")
    async with queue.lease() as lease:
        assert lease is not None
        await lease.ack(b"42")
        told = [await lease.progress(1.0), await lease.extend(), await lease.delay(), await lease.release()]
        assert (await lease.ack()).settled == Settled.SETTLED_ACKED
    assert {each.settled for each in told} == {Settled.SETTLED_ACKED}
    assert not lease.is_lost
    assert [name for name, _ in service.calls if name in {"Ack", "Delay", "Extend"}] == ["Ack"]


async def test_progress_that_the_ack_overtakes_is_no_loss(service: FakeService, queue: headway.Queue) -> None:
    """As from a timer of its own: the Ack is done when the Extend comes, and is answered last."""
    await queue.put(b"x")
    gate = service.hold_next("Ack")
    async with asyncio.timeout(30), queue.lease() as lease:
        assert lease is not None
        acking = asyncio.create_task(lease.ack())
        await service.wait_for(lambda: service.requests("Ack"))
        assert (await lease.progress(1.0)).settled == Settled.SETTLED_GONE
        assert not lease.is_lost
        gate.set()
        assert (await acking).settled == Settled.SETTLED_ACKED
    assert not lease.is_lost


async def test_progress_after_a_loss_is_told_of_it_each_time(service: FakeService, queue: headway.Queue) -> None:
    await queue.put(b"x")
    lease = queue.hold((await queue.get()).deliveries[0], lease=SOON)
    await service.lapse("q")
    for _ in range(2):
        with pytest.raises(headway.LeaseStale):
            await lease.progress(0.5)
        with pytest.raises(headway.LeaseStale):
            await lease.ack()
    assert lease.is_lost


async def test_explicit_settling_is_not_done_again(service: FakeService, queue: headway.Queue, made: FakeQueue) -> None:
    await queue.put_many([b"1", b"2"])
    async with queue.lease() as first:
        assert first is not None
        await first.delay(timedelta(seconds=9), reason="not now")
    async with queue.lease() as second:
        assert second is not None
        await second.ack(b"42")
    assert made.reasons == ["not now"]
    assert [request.result for request in service.requests("Ack")] == [b"42"]


@pytest.mark.parametrize(("asked", "spans"), [(0, (10, 20)), (7, (3, 20))])
async def test_how_long_an_extension_lasts_is_told_by_the_stores_clock(
    queue: headway.Queue, asked: int, spans: tuple[int, int]
) -> None:
    """Which may be hours apart from ours: it is known by when the lease was to lapse before."""
    expires_at = 1_000
    delivery = Delivery(lease="a", lease_expires_at=Timestamp(seconds=expires_at))
    lease = Lease(queue, delivery, span=SOON)

    def hear(seconds: int, span: timedelta | None) -> None:
        result = SettleResult(settled=Settled.SETTLED_EXTENDED, available_at=Timestamp(seconds=expires_at + seconds))
        lease.hear(result, lease.lapses_at, span, longest=timedelta(minutes=1))

    if asked:
        hear(asked, timedelta(seconds=asked))
    for later, lasts in zip((10, 30), spans, strict=True):
        before = lease.lapses_at
        hear(later, None)
        assert lease.span == timedelta(seconds=lasts)
        assert lease.lapses_at == before + lasts


async def test_lease_is_extended_while_the_block_runs(service: FakeService, queue: headway.Queue) -> None:
    await queue.put(b"x")
    async with queue.lease(lease=timedelta(milliseconds=150)) as lease:
        assert lease is not None
        before = lease.lapses_at
        await service.wait_for(lambda: len(service.requests("Extend")) >= 2)
        assert lease.lapses_at > before
    request = service.requests("Extend")[0]
    assert request.leases == [lease.token]
    assert request.lease.ToMilliseconds() == 150
    count = len(service.requests("Extend"))
    await queue.describe()
    assert len(service.requests("Extend")) == count


async def test_keep_alive_goes_on_after_a_failure(service: FakeService, queue: headway.Queue) -> None:
    await queue.put(b"x")
    service.fail_next("Extend", Failure(code=grpc.StatusCode.INTERNAL, reason="INTERNAL"))
    async with queue.lease(lease=timedelta(milliseconds=150)) as lease:
        await service.wait_for(lambda: len(service.requests("Extend")) >= 2)
    assert lease is not None
    assert not lease.is_lost


async def test_lease_is_extended_while_its_last_ack_is_being_tried(service: FakeService, made: FakeQueue) -> None:
    """The first try is never answered, though it did what was asked; Extends find the lease gone then: no loss."""
    service.fail_next("Ack", SILENT)
    async with headway.connect(service.address, call_timeout=timedelta(seconds=3)) as client:  # half for the first try
        queue = client.queue("q")
        await queue.put(b"x")
        async with queue.lease(lease=timedelta(milliseconds=150)) as lease:
            pass
    steps = [name for name, _ in service.calls]
    first, last = (i for i, name in enumerate(steps) if name == "Ack")
    assert "Extend" in steps[first:last]
    assert lease is not None
    assert not lease.is_lost
    assert len(made.acked) == 1


async def test_block_is_acked_after_an_outage_of_more_than_five_tries(
    service: FakeService, queue: headway.Queue, made: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "backoff_seconds", lambda *_: 0.01)
    await queue.put_many([b"1", b"2"])
    service.fail_next("Ack", AWAY, times=12)
    async with queue.lease(lease=SOON):
        pass
    service.fail_next("Ack", AWAY, times=12)
    async with queue.lease(lease=SOON) as lease:
        assert lease is not None
        await lease.ack(b"done")
    assert made.results == [b"", b"done"]
    assert not service.requests("Delay")


async def test_block_whose_ack_is_refused_gives_to_the_backoff(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put(b"x")
    service.fail_next("Ack", Failure(code=grpc.StatusCode.INVALID_ARGUMENT, reason="FIELD_INVALID"))
    with pytest.raises(headway.FieldInvalid):
        async with queue.lease():
            pass
    assert len(service.requests("Ack")) == 1
    assert made.reasons == ["headway.core.errors.FieldInvalid"]


async def test_cancellation_while_the_last_ack_is_being_tried_gives_back_for_free(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put(b"x")
    service.fail_next("Ack", AWAY, times=100)

    async def hold() -> None:
        async with queue.lease():
            pass

    task = asyncio.create_task(hold())
    await service.wait_for(lambda: service.requests("Ack"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert service.requests("Delay")[0].keep_attempt
    assert [held.attempt for held in made.line] == [1]


async def test_block_whose_lease_was_lost_raises_stale(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put(b"x")
    lost = asyncio.Event()
    response = await queue.get()
    lease = Lease(queue, response.deliveries[0], span=timedelta(milliseconds=90), on_end=lambda _: lost.set())

    async def work_on_it() -> None:
        async with lease:
            await service.lapse("q")
            await lost.wait()

    with pytest.raises(headway.LeaseStale):
        await work_on_it()
    assert lease.is_lost
    assert not made.acked
    assert not service.requests("Ack")


async def test_late_ack_raises_stale(service: FakeService, queue: headway.Queue) -> None:
    await queue.put(b"x")
    with pytest.raises(headway.LeaseStale):
        async with queue.lease():
            await service.lapse("q")


async def test_ack_is_too_late_for_a_message_that_is_dead(service: FakeService, queue: headway.Queue) -> None:
    await queue.put(b"x", id="a")
    lease = queue.hold((await queue.get()).deliveries[0], lease=SOON)
    await service.lapse("q", is_last=True)
    with pytest.raises(headway.LeaseStale, match="'a' is over: the message is dead") as caught:
        await lease.ack()
    assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.metadata == {"queue": "q"}
    assert not caught.value.is_outcome_unknown
    assert lease.is_lost
    assert lease.is_settled


async def test_delay_that_ends_with_the_message_dead_is_done(service: FakeService, queue: headway.Queue) -> None:
    await queue.put(b"x")
    async with queue.lease() as lease:
        assert lease is not None
        await service.lapse("q", is_last=True)
        assert (await lease.delay()).settled == Settled.SETTLED_DEAD
    assert lease.is_settled
    assert not lease.is_lost


async def test_made_up_lease_is_gone(queue: headway.Queue) -> None:
    await queue.put(b"x")
    response = await queue.get()
    response.deliveries[0].lease = "made up"
    held = queue.hold(response.deliveries[0], lease=SOON)
    with pytest.raises(headway.LeaseGone):
        await held.extend()
    with pytest.raises(headway.LeaseGone):
        await held.ack()


async def test_giving_back_is_tried_again(service: FakeService, queue: headway.Queue, made: FakeQueue) -> None:
    await queue.put(b"x")
    service.fail_next("Delay", Failure(code=grpc.StatusCode.UNAVAILABLE, is_after=True))
    with pytest.raises(_Broken):
        async with queue.lease():
            raise _Broken
    assert len(service.requests("Delay")) == 2
    assert len(made.delayed) == 1


async def test_waiting_messages_are_postponed_and_withdrawn_by_id(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put(b"1", id="held")
    await queue.get()
    for name in ("a", "b", "c"):
        await queue.put(b"x", id=name)
    results = await queue.postpone(["a", "held", "nobody"], timedelta(hours=1), reason="not now")
    assert [result.id for result in results] == ["a", "held", "nobody"]
    assert [result.settled for result in results] == [
        Settled.SETTLED_DELAYED,
        Settled.SETTLED_STALE,
        Settled.SETTLED_GONE,
    ]
    assert results[0].HasField("available_at")
    assert (await queue.postpone(["b"], timedelta(0)))[0].settled == Settled.SETTLED_RELEASED
    assert service.requests("Delay")[0].reason == "not now"
    withdrawn = await queue.withdraw(["a", "b", "held", "nobody"])
    assert [result.withdrawn for result in withdrawn] == [True, True, False, False]
    assert [type(from_status(result.error)) for result in withdrawn[2:]] == [
        headway.MessageLeased,
        headway.MessageNotFound,
    ]
    assert [held.message.id for held in made.line] == ["c"]


async def test_replaced_message_makes_its_lease_stale(queue: headway.Queue, made: FakeQueue) -> None:
    await queue.put(b"old", id="a")
    with pytest.raises(headway.LeaseStale):
        async with queue.lease():
            await queue.put(b"new", id="a", on_duplicate="replace")
    assert [held.message.payload for held in made.line] == [b"new"]


async def test_drained_queue_raises(queue: headway.Queue) -> None:
    await queue.close()
    with pytest.raises(headway.QueueDrained):
        async with queue.lease(wait=SOON):
            pass
