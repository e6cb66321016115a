"""Answers that are lost: what is asked for again, under which name, and that nothing is done or held twice."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from typing import Any

import grpc
import pytest

import headway
from client.fake_service import Failure, FakeQueue, FakeService
from harness import eventually
from headway.core import Connection, Worker
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Settled

CUT = Failure(code=grpc.StatusCode.UNAVAILABLE, is_after=True)
LOST = Failure(code=grpc.StatusCode.UNAVAILABLE, reason="OUTCOME_UNKNOWN", is_after=True)
SILENT = Failure(code=grpc.StatusCode.UNAVAILABLE, is_silent=True)
NOT_DONE = Failure(code=grpc.StatusCode.UNAVAILABLE, reason="SHUTTING_DOWN")
SHORT = timedelta(milliseconds=600)


@pytest.mark.parametrize("failure", [CUT, LOST, SILENT], ids=["cut", "unknown", "silent"])
async def test_lost_answer_of_get_brings_the_same_lease(
    service: FakeService, made: FakeQueue, failure: Failure
) -> None:
    async with headway.connect(service.address, call_timeout=SHORT) as client:
        queue = client.queue("q")
        await queue.put_many([b"1", b"2"])
        service.fail_next("Get", failure)
        response = await queue.get()
    assert [each.message.payload for each in response.deliveries] == [b"1"]
    assert list(made.leased) == [response.deliveries[0].lease]
    first, second = service.requests("Get")
    assert first.attempt_id == second.attempt_id != ""


async def test_every_get_has_a_name_of_its_own(service: FakeService, queue: headway.Queue) -> None:
    await queue.put_many([b"1", b"2"])
    for _ in range(3):
        await queue.get()
    assert len({request.attempt_id for request in service.requests("Get")} - {""}) == 3


async def test_get_goes_on_under_a_name_that_the_caller_gave(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put_many([b"1", b"2"])
    service.fail_next("Get", LOST, times=5)
    with pytest.raises(headway.OutcomeUnknown):
        await queue.get(attempt_id="mine")
    assert [each.message.payload for each in (await queue.get(attempt_id="mine")).deliveries] == [b"1"]
    assert len(made.leased) == 1


async def test_repeat_waits_no_longer_than_the_caller_said(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    service.fail_next("Get", NOT_DONE)
    assert not (await queue.get(wait=timedelta(milliseconds=300))).deliveries
    first, second = service.requests("Get")
    assert second.wait.ToMilliseconds() < first.wait.ToMilliseconds() == 300


async def test_unknown_outcome_is_not_hidden_by_a_refusal_behind_it(service: FakeService, queue: headway.Queue) -> None:
    service.failures["Get"] = [LOST, NOT_DONE, NOT_DONE, NOT_DONE, NOT_DONE]
    with pytest.raises(headway.OutcomeUnknown):
        await queue.get()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "STORE_FULL"),
        (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED"),
        (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"),
        (grpc.StatusCode.FAILED_PRECONDITION, "QUEUE_CLOSED"),
        (grpc.StatusCode.FAILED_PRECONDITION, "ROLE_IN_USE"),
        (grpc.StatusCode.INTERNAL, "INTERNAL"),
    ],
)
async def test_repeat_that_is_not_looked_at_does_not_hide_what_the_first_try_may_have_done(
    service: FakeService, queue: headway.Queue, made: FakeQueue, code: grpc.StatusCode, reason: str
) -> None:
    service.failures["Put"] = [LOST, Failure(code=code, reason=reason)]
    with pytest.raises(headway.OutcomeUnknown) as caught:
        await queue.put(b"1", id="a")
    assert caught.value.is_outcome_unknown
    assert len(made.line) == 1


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.NOT_FOUND, "QUEUE_DELETED"),
        (grpc.StatusCode.ALREADY_EXISTS, "DUPLICATE_MESSAGE"),
        (grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID"),
    ],
)
async def test_repeat_that_tells_what_became_of_the_first_try_is_believed(
    service: FakeService, queue: headway.Queue, code: grpc.StatusCode, reason: str
) -> None:
    service.failures["Put"] = [LOST, Failure(code=code, reason=reason)]
    with pytest.raises(headway.HeadwayError) as caught:
        await queue.put(b"1", id="a")
    assert caught.value.reason_name == reason


async def test_repeated_get_of_a_drained_queue_has_leased_nothing(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    made.closed = True
    service.fail_next("Get", Failure(code=grpc.StatusCode.UNAVAILABLE))
    with pytest.raises(headway.QueueDrained):
        await queue.get()


async def test_what_only_reads_fails_with_what_was_said_last(service: FakeService, client: headway.Client) -> None:
    denied = Failure(code=grpc.StatusCode.PERMISSION_DENIED, reason="PERMISSION_DENIED")
    service.failures["Describe"] = [Failure(code=grpc.StatusCode.UNAVAILABLE), denied]
    with pytest.raises(headway.PermissionDenied):
        await client.queue("q").describe()


async def test_cancelled_get_is_not_repeated(service: FakeService, queue: headway.Queue) -> None:
    task = asyncio.create_task(queue.get(wait=timedelta(seconds=30)))
    await service.wait_for(lambda: service.requests("Get"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(service.requests("Get")) == 1


async def _nothing(lease: object) -> None:
    """A handler that has nothing to do."""


async def _lease(queue: headway.Queue) -> None:
    async with queue.lease(wait=timedelta(seconds=30)):
        raise AssertionError("its answer never comes")


async def _work(queue: headway.Queue) -> None:
    async for _ in queue.work(by="calls"):
        raise AssertionError("its answer never comes")


@pytest.mark.parametrize("is_core", [False, True], ids=["calls", "core"])
async def test_worker_that_stops_just_when_a_message_is_leased_gives_it_back(
    service: FakeService, queue: headway.Queue, made: FakeQueue, is_core: bool
) -> None:
    await queue.put(b"1")
    service.fail_next("Get", SILENT)
    stop = asyncio.Event()
    core = Worker(queue.client.connection, "q", _nothing, stop=stop)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(core.run() if is_core else queue.run(_nothing, stop=stop, by="calls"))
        await service.wait_for(lambda: made.leased)  # its answer is on the way
        stop.set()
    assert not made.leased
    assert [held.attempt for held in made.line] == [1]
    assert len({request.attempt_id for request in service.requests("Get")}) == 1
    assert [request.keep_attempt for request in service.requests("Delay")] == [True]


@pytest.mark.parametrize(
    "waiting",
    [
        lambda queue: queue.run(_nothing, by="calls"),
        lambda queue: Worker(queue.client.connection, "q", _nothing).run(),
        _work,
        _lease,
    ],
    ids=["run", "core", "work", "lease"],
)
async def test_whatever_is_cancelled_just_when_a_message_is_leased_gives_it_back(
    service: FakeService, queue: headway.Queue, made: FakeQueue, waiting: Callable[[headway.Queue], Any]
) -> None:
    await queue.put(b"1")
    service.fail_next("Get", SILENT)
    task = asyncio.create_task(waiting(queue))
    await service.wait_for(lambda: made.leased)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not made.leased
    assert [held.attempt for held in made.line] == [1]


@pytest.mark.parametrize("is_core", [False, True], ids=["calls", "core"])
async def test_worker_that_is_cancelled_just_when_its_answer_is_there_gives_back_what_it_brought(
    queue: headway.Queue, made: FakeQueue, monkeypatch: pytest.MonkeyPatch, is_core: bool
) -> None:
    call = Connection.call

    async def answered(connection: Connection, rpc: Any, request: Any, **options: Any) -> Any:
        answer = await call(connection, rpc, request, **options)
        if isinstance(request, pb.GetRequest):
            task.cancel()
        return answer

    await queue.put(b"1")
    monkeypatch.setattr(Connection, "call", answered)
    core = Worker(queue.client.connection, "q", _nothing)
    task = asyncio.create_task(core.run() if is_core else queue.run(_nothing, by="calls"))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not made.leased
    assert not made.acked
    assert [held.attempt for held in made.line] == [1]


async def test_what_cannot_be_given_back_when_a_worker_stops_is_said(
    service: FakeService, queue: headway.Queue, made: FakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    await queue.put(b"1")
    service.failures["Get"] = [SILENT, Failure(code=grpc.StatusCode.INTERNAL, reason="INTERNAL")]
    stop = asyncio.Event()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(queue.run(_nothing, stop=stop, by="calls"))
        await service.wait_for(lambda: made.leased)
        stop.set()
    assert "a message may be left leased until its lease lapses" in caplog.text


async def test_lease_of_a_repeated_get_is_extended_at_once(service: FakeService, queue: headway.Queue) -> None:
    await queue.put(b"1")
    service.fail_next("Get", LOST)
    async with queue.lease(lease=timedelta(hours=1)) as lease:
        assert lease is not None
        await service.wait_for(lambda: service.requests("Extend"))
    assert len(service.requests("Extend")) == 1


@pytest.mark.parametrize("failure", [CUT, LOST, SILENT], ids=["cut", "unknown", "silent"])
async def test_lost_answer_of_ack_is_asked_for_again(service: FakeService, made: FakeQueue, failure: Failure) -> None:
    async with headway.connect(service.address, call_timeout=SHORT) as client:
        queue = client.queue("q")
        await queue.put(b"1")
        async with queue.lease() as lease:
            assert lease is not None
            service.fail_next("Ack", failure)
            result = await lease.ack(b"42")
    assert result.settled == Settled.SETTLED_ALREADY_ACKED
    assert made.results == [b"42"]


async def test_lost_answer_of_delay_does_not_look_like_a_lost_lease(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put(b"1")
    async with queue.lease() as lease:
        assert lease is not None
        service.fail_next("Delay", LOST)
        await lease.delay(timedelta(hours=1))
        assert lease.is_settled
        assert not lease.is_lost
    assert len(made.delayed) == 1


async def test_stale_delay_raises_if_no_answer_was_lost(service: FakeService, queue: headway.Queue) -> None:
    await queue.put(b"1")
    response = await queue.get()
    held = queue.hold(response.deliveries[0], lease=timedelta(seconds=5))
    await service.lapse("q")
    service.fail_next("Delay", NOT_DONE)
    with pytest.raises(headway.LeaseStale):
        await held.delay()


async def test_lost_answer_of_withdraw_is_not_told_as_too_late(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put(b"1", id="a")
    service.fail_next("Withdraw", LOST)
    assert (await queue.withdraw(["a"]))[0].withdrawn
    again = (await queue.withdraw(["a"]))[0]
    assert not again.withdrawn
    assert again.error.metadata["outcome"] == "WITHDRAWN"


async def _put_for_sure(queue: headway.Queue, name: str) -> None:
    while True:
        try:
            await queue.put(name.encode(), id=name, on_duplicate="keep")
        except headway.OutcomeUnknown:
            continue
        return


@pytest.mark.parametrize("share", [0.1, 0.5])
async def test_workers_handle_every_message_once_while_answers_are_lost(
    service: FakeService, queue: headway.Queue, made: FakeQueue, share: float
) -> None:
    """Leases of the in-memory service never lapse: one that nobody knew of would be left over for ever."""
    chance = random.Random(7)
    for method in ("Get", "Ack", "Put"):
        service.failures[method] = [LOST if chance.random() < share else None for _ in range(400)]
    names = [f"m{number}" for number in range(24)]
    for name in names:
        await _put_for_sure(queue, name)
    await queue.close()
    handled: list[str] = []

    async def handle(lease: headway.Lease) -> bytes | None:
        handled.append(lease.id)
        return lease.payload if len(handled) % 2 else None

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(queue.run(handle, concurrency=2, by="calls"))
    assert sorted(handled) == sorted(names)
    assert not made.leased
    assert {m.id for m in made.acked} == set(names)


async def _iterate(queue: headway.Queue) -> None:
    async for lease in queue.work(by="calls"):
        raise AssertionError(f"{lease.id} was worked on")


async def _run(queue: headway.Queue) -> None:
    async def handle(lease: headway.Lease) -> None:
        raise AssertionError(f"{lease.id} was worked on")

    await queue.run(handle, by="calls")


@pytest.mark.parametrize("work", [_iterate, _run])
async def test_what_is_cancelled_in_a_pause_gives_back_what_a_lost_answer_leased(
    service: FakeService,
    queue: headway.Queue,
    made: FakeQueue,
    caplog: pytest.LogCaptureFixture,
    work: Callable[[headway.Queue], Coroutine[Any, Any, None]],
) -> None:
    await queue.put(b"1")
    service.fail_next("Get", replace(LOST, retry_seconds=3600.0))
    working = asyncio.create_task(work(queue))
    await eventually(lambda: "trying again" in caplog.text)  # the last thing before the pause
    assert made.leased
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    first, again = service.requests("Get")
    assert first.attempt_id == again.attempt_id
    assert not made.leased
    assert [held.attempt for held in made.line] == [1]


async def test_iterating_goes_on_with_what_a_lost_answer_leased(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put_many([b"1", b"2"])
    await queue.close()
    service.fail_next("Get", LOST, times=7)
    seen = []
    async for lease in queue.work(by="calls"):
        async with lease:
            seen.append(lease.payload)
    assert seen == [b"1", b"2"]
    assert made.most_leased == 1
