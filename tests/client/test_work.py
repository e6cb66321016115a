"""Workers: how many messages they hold, how they settle, how they stop, and what they live through."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Literal
from unittest.mock import AsyncMock

import grpc
import pytest

import headway
from client.fake_service import Failure, FakeQueue, FakeService
from headway.core import connecting
from headway.v1.message_pb2 import Settled

AWAY = Failure(code=grpc.StatusCode.UNAVAILABLE, reason="SHUTTING_DOWN")
OVERLOADED = Failure(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="OVERLOADED")
By = Literal["stream", "calls"]
LOST = Failure(code=grpc.StatusCode.UNAVAILABLE, reason="OUTCOME_UNKNOWN", is_after=True)


class _Gate:
    """A handler that counts who is inside and lets them out on command."""

    def __init__(self) -> None:
        self.inside: list[headway.Lease] = []
        self.entered = asyncio.Condition()
        self.opened = asyncio.Event()

    async def __call__(self, lease: headway.Lease) -> None:
        async with self.entered:
            self.inside.append(lease)
            self.entered.notify_all()
        await self.opened.wait()

    async def wait_for(self, count: int) -> None:
        async with self.entered:
            await self.entered.wait_for(lambda: len(self.inside) >= count)


@pytest.fixture(params=["stream", "calls"])
def by(request: pytest.FixtureRequest) -> str:
    """What holds whichever way a worker works is shown for both."""
    return str(request.param)


async def _nothing(lease: headway.Lease) -> None:
    """A handler that has nothing to do."""


async def test_every_message_is_handled_and_acked_until_drained(queue: headway.Queue, made: FakeQueue, by: By) -> None:
    payloads = [b"%d" % i for i in range(50)]
    await queue.put_many(payloads)
    await queue.close()
    seen: list[bytes] = []

    async def handle(lease: headway.Lease) -> None:
        seen.append(lease.payload)

    await queue.run(handle, concurrency=4, by=by)
    assert sorted(seen) == sorted(payloads)
    assert len(made.acked) == 50


async def test_ack_travels_with_the_next_get(service: FakeService, queue: headway.Queue) -> None:
    await queue.put_many([b"1", b"2", b"3"])
    await queue.close()
    await queue.run(_nothing, by="calls")
    gets = service.requests("Get")
    assert [len(request.ack) for request in gets] == [0, 1, 1, 1, 0]
    assert not any(request.wait.ToMilliseconds() for request in gets if request.ack)
    assert not service.requests("Ack")


async def test_no_more_is_held_than_there_are_slots(queue: headway.Queue, made: FakeQueue, by: By) -> None:
    await queue.put_many([b"x"] * 10)
    await queue.close()
    gate = _Gate()
    async with asyncio.TaskGroup() as group:
        group.create_task(queue.run(gate, concurrency=3, by=by))
        await gate.wait_for(3)
        assert len(made.leased) == 3
        gate.opened.set()
    assert made.most_leased == 3
    assert len(gate.inside) == 10


async def test_stop_finishes_what_is_held_and_fetches_no_more(queue: headway.Queue, made: FakeQueue, by: By) -> None:
    await queue.put_many([b"x"] * 5)
    gate, stop = _Gate(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(queue.run(gate, concurrency=2, stop=stop, by=by))
        await gate.wait_for(2)
        stop.set()
        gate.opened.set()
    assert len(made.acked) == 2
    assert len(made.line) == 3
    assert not made.leased


async def test_stop_ends_a_worker_that_waits(service: FakeService, queue: headway.Queue, by: By) -> None:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(queue.run(_nothing, concurrency=2, stop=stop, by=by))
        await service.wait_for(lambda: len(service.requests("Get")) == 2 or service.requests("Consume"))
        stop.set()


async def test_cancelled_worker_gives_back_for_free(
    service: FakeService, queue: headway.Queue, made: FakeQueue, by: By
) -> None:
    await queue.put_many([b"1", b"2"])
    gate = _Gate()
    task = asyncio.create_task(queue.run(gate, concurrency=2, by=by))
    await gate.wait_for(2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [request.keep_attempt for request in service.requests("Delay")] == [True, True]
    assert len(made.line) == 2


async def test_cancelled_worker_takes_no_more_before_it_gives_back(service: FakeService, queue: headway.Queue) -> None:
    await queue.put_many([b"1", b"2"])
    gate = _Gate()
    task = asyncio.create_task(queue.run(gate, concurrency=2, by="stream"))
    await gate.wait_for(2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    steps = [(name, request) for name, request in service.calls if name in {"Credit", "Delay"}]
    assert [name for name, _ in steps] == ["Credit", "Delay", "Delay"]
    assert steps[0][1].messages == 0


async def test_failing_handler_delays_and_the_worker_goes_on(queue: headway.Queue, made: FakeQueue, by: By) -> None:
    await queue.put_many([b"bad", b"good"])

    async def handle(lease: headway.Lease) -> None:
        if lease.payload == b"bad":
            raise ValueError("no")
        stop.set()

    stop = asyncio.Event()
    await queue.run(handle, stop=stop, by=by)
    assert made.reasons == ["ValueError"]
    assert [m.payload for m in made.acked] == [b"good"]


@pytest.mark.parametrize("raises", [False, True])
async def test_what_could_not_be_given_back_is_neither_acked_nor_kept_alive(  # noqa: PLR0917 - five fixtures
    service: FakeService, queue: headway.Queue, made: FakeQueue, by: By, monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    monkeypatch.setattr(connecting, "backoff_seconds", lambda *_: 0.01)
    await queue.put_many([b"bad", b"good"])
    service.keeps_leases = True  # and the end of a stream does not give it back
    service.fail_next("Delay", AWAY, times=5 if by == "calls" else 6)  # the stream's, and all tries of a call
    left, is_begun, stop, later = list[headway.Lease](), asyncio.Event(), asyncio.Event(), list[Sequence[str]]()

    async def handle(lease: headway.Lease) -> None:
        if lease.payload == b"bad":
            left.append(lease)
            is_begun.set()
            if raises:
                raise ZeroDivisionError
            await lease.give_back(failed_with="no")
            return
        await is_begun.wait()
        await left[0].until_ended()
        count = len(service.requests("Extend"))
        await service.wait_for(lambda: len(service.requests("Extend")) >= count + 4)
        later.extend(request.leases for request in service.requests("Extend")[count + 1 :])
        stop.set()

    async with asyncio.timeout(30):
        await queue.run(handle, concurrency=2, lease=timedelta(milliseconds=300), stop=stop, by=by)
    assert [m.payload for m in made.acked] == [b"good"]
    assert not any(left[0].token in leases for leases in later)


async def test_worker_drains_behind_what_could_not_be_given_back(
    service: FakeService, queue: headway.Queue, made: FakeQueue, by: By, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "backoff_seconds", lambda *_: 0.01)
    await queue.put(b"1")
    service.keeps_leases = True
    service.fail_next("Delay", AWAY, times=5 if by == "calls" else 6)
    failed: asyncio.Future[headway.Lease] = asyncio.get_running_loop().create_future()

    async def handle(lease: headway.Lease) -> None:
        if not failed.done():
            failed.set_result(lease)
            raise ZeroDivisionError

    async with asyncio.timeout(30):
        run = asyncio.create_task(queue.run(handle, lease=timedelta(hours=1), drain=True, by=by))
        await (await failed).until_ended()
        await service.lapse("q")
        await run
    assert [m.payload for m in made.acked] == [b"1"]


async def test_handler_that_cannot_be_awaited_ends_the_worker_at_its_first_message(
    queue: headway.Queue, made: FakeQueue, by: By
) -> None:
    await queue.put_many([b"1", b"2", b"3"])
    seen: list[bytes] = []

    def handle(lease: headway.Lease) -> None:
        seen.append(lease.payload)

    plain: Any = handle
    async with asyncio.timeout(30):
        with pytest.raises(TypeError, match="a handler is an `async def`"):
            await queue.run(plain, concurrency=2, by=by)
    assert len(seen) == 1
    assert [reason for reason in made.reasons if reason] == ["TypeError"]
    assert (len(made.delayed), len(made.line), len(made.acked)) == (1, 2, 0)


async def _on_behalf(name: str, lease: headway.Lease) -> None:
    """A handler that wants to know more."""


async def test_whatever_answers_something_that_can_be_awaited_is_a_handler(
    queue: headway.Queue, made: FakeQueue
) -> None:
    for handler in (AsyncMock(), partial(_on_behalf, "me"), lambda lease: _on_behalf("me", lease)):
        await queue.put(b"x")
        await queue.run(handler, drain=True, by="calls")
    assert len(made.acked) == 3


async def test_handler_may_settle_by_itself(
    service: FakeService, queue: headway.Queue, made: FakeQueue, by: By
) -> None:
    await queue.put(b"x")

    async def handle(lease: headway.Lease) -> None:
        await lease.delay(timedelta(hours=1), reason="later")
        stop.set()

    stop = asyncio.Event()
    await queue.run(handle, stop=stop, by=by)
    assert made.reasons == ["later"]
    assert not made.acked
    assert not service.requests("Ack")


async def test_drain_ends_when_nothing_waits_is_delayed_or_is_leased(
    service: FakeService, queue: headway.Queue, made: FakeQueue, by: By
) -> None:
    await queue.put(b"now")
    await queue.put(b"later", delay=timedelta(hours=1))
    task = asyncio.create_task(queue.run(_nothing, concurrency=2, drain=True, by=by))
    await service.wait_for(lambda: made.acked and len(service.requests("Describe")) > 2)
    assert not task.done()
    await service.release_delayed("q")
    await task
    assert len(made.acked) == 2


async def test_cancelled_worker_that_drains_asks_nothing_more(service: FakeService, queue: headway.Queue) -> None:
    """It could not be cancelled meanwhile, and the service may be away."""
    task = asyncio.create_task(queue.run(_nothing, drain=True, by="calls"))
    await service.wait_for(lambda: service.requests("Get"))
    asked_count = len(service.requests("Describe"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(service.requests("Describe")) == asked_count


async def test_lease_is_extended_while_the_handler_runs(service: FakeService, queue: headway.Queue, by: By) -> None:
    await queue.put(b"x")
    await queue.close()

    async def handle(lease: headway.Lease) -> None:
        await service.wait_for(lambda: service.requests("Extend"))

    await queue.run(handle, lease=timedelta(milliseconds=150))


async def test_lease_whose_span_nobody_tells_is_extended_at_once(
    service: FakeService, queue: headway.Queue, made: FakeQueue, by: By
) -> None:
    """Of messages that a foreign client put before the service knew the queue; the policy may be another by then."""
    made.policy.lease.FromSeconds(3600)
    await queue.policy_lease()
    made.policy.lease.FromMilliseconds(300)
    made.is_foreign = True
    await queue.put(b"x")
    await queue.close()

    async def handle(lease: headway.Lease) -> None:
        await service.wait_for(lambda: service.requests("Extend"))

    async with asyncio.timeout(30):
        await queue.run(handle, by=by)
    assert [request.lease.ToSeconds() for request in service.requests("Extend")] == [3600]


async def test_worker_survives_a_service_that_is_away(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put_many([b"1", b"2"])
    await queue.close()
    service.failures["Get"] = [AWAY, AWAY, None, AWAY]
    service.failures["Describe"] = [AWAY] * 5
    await queue.run(_nothing, by="calls")
    assert len(made.acked) == 2


async def test_lost_answer_to_an_ack_with_get_is_asked_for_again(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put_many([b"1", b"2"])
    await queue.close()
    service.failures["Get"] = [None, LOST]
    await queue.run(_nothing, by="calls")
    assert len(made.acked) == 2
    first, second, third, *_ = service.requests("Get")
    assert second.attempt_id == third.attempt_id
    assert first.attempt_id not in ("", second.attempt_id)
    assert not service.requests("Ack")


async def test_stopped_worker_gives_back_what_a_lost_answer_leased(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put(b"1")
    service.fail_next("Get", LOST, times=7)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(queue.run(_nothing, stop=stop, by="calls"))
        await service.wait_for(lambda: len(service.requests("Get")) == 5)
        stop.set()
    assert not made.leased
    assert [held.attempt for held in made.line] == [1]
    assert not made.acked


async def test_ack_that_came_too_late_is_said(
    service: FakeService, queue: headway.Queue, made: FakeQueue, caplog: pytest.LogCaptureFixture, by: By
) -> None:
    await queue.put(b"1")

    async def handle(lease: headway.Lease) -> None:
        if lease.attempt == 1:
            await service.lapse("q")
        else:
            stop.set()

    stop = asyncio.Event()
    await queue.run(handle, stop=stop, by=by)
    assert "ack came too late" in caplog.text
    assert len(made.acked) == 1


async def test_ack_of_a_message_that_died_meanwhile_is_said_to_be_too_late(
    service: FakeService, queue: headway.Queue, made: FakeQueue, caplog: pytest.LogCaptureFixture, by: By
) -> None:
    await queue.put_many([b"1", b"2"])
    await queue.close()

    async def handle(lease: headway.Lease) -> bytes | None:
        await service.lapse("q", is_last=True)
        return b"done" if lease.payload == b"2" else None

    await queue.run(handle, by=by)
    assert caplog.text.count("its ack came too late") == caplog.text.count("the message is dead") == 2
    assert len(made.dead) == 2
    assert not made.acked


@pytest.mark.parametrize("refused", [OVERLOADED, AWAY], ids=["overloaded", "going down"])
async def test_what_is_done_is_acked_where_nothing_more_is_leased(
    service: FakeService, queue: headway.Queue, made: FakeQueue, refused: Failure
) -> None:
    await queue.put_many([b"1", b"2"])
    service.failures["Get"] = [None, *[refused] * 100]
    stop = asyncio.Event()
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(queue.run(_nothing, stop=stop, by="calls"))
        await service.wait_for(lambda: made.acked)
        stop.set()
    assert [message.payload for message in made.acked] == [b"1"]
    assert len(service.requests("Ack")) == 1


async def test_worker_waits_as_long_as_it_was_told_before_it_asks_for_more(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put_many([b"1", b"2"])
    await queue.close()
    clock = asyncio.get_running_loop().time
    handled: list[float] = []

    async def handle(lease: headway.Lease) -> None:
        handled.append(clock())

    service.failures["Get"] = [None, replace(OVERLOADED, retry_seconds=0.5)]
    await queue.run(handle, by="calls")
    assert [message.payload for message in made.acked] == [b"1", b"2"]
    assert handled[1] - handled[0] >= 0.5


@pytest.mark.parametrize("result", [None, b"done"])
async def test_lease_is_kept_alive_until_its_ack_is_through(
    service: FakeService, queue: headway.Queue, made: FakeQueue, result: bytes | None
) -> None:
    await queue.put(b"1")
    await queue.close()

    async def handle(lease: headway.Lease) -> bytes | None:
        return result

    service.failures["Get"] = [None, OVERLOADED]
    service.fail_next("Ack", replace(OVERLOADED, retry_seconds=0.5))
    await queue.run(handle, lease=timedelta(milliseconds=150), by="calls")
    steps = [name for name, _ in service.calls]
    first, last = (i for i, name in enumerate(steps) if name == "Ack")
    assert "Extend" in steps[first:last]
    assert len(made.acked) == 1


@pytest.mark.parametrize("way", ["Get", "Ack", "stream"])
async def test_lease_is_kept_alive_while_its_ack_is_being_tried(
    service: FakeService, queue: headway.Queue, made: FakeQueue, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    """The first try is never answered; what is said of the lease behind it, which is settled by then, is no loss."""
    await queue.put(b"1")
    await queue.close()
    held: list[headway.Lease] = []

    async def handle(lease: headway.Lease) -> bytes | None:
        held.append(lease)
        return b"done" if way == "Ack" else None

    silent = Failure(code=grpc.StatusCode.UNAVAILABLE, is_silent=True)
    method = "Get" if way == "Get" else "Ack"
    failures: dict[str, list[Failure | None]] = {"Get": [None, silent], "Ack": [silent], "stream": [AWAY, silent]}
    service.failures[method] = failures[way]
    service.keeps_leases = True  # where its stream, too, ends over the ack
    second = timedelta(seconds=1)
    async with (
        asyncio.timeout(30),
        headway.connect(service.address, call_timeout=second) as client,
        asyncio.TaskGroup() as group,
    ):
        by: By = "stream" if way == "stream" else "calls"
        group.create_task(client.queue("q").run(handle, lease=timedelta(milliseconds=150), by=by))
        await service.wait_for(lambda: made.acked)
        asked_count = len(service.requests("Extend"))
        await service.wait_for(lambda: len(service.requests("Extend")) > asked_count + 1)
        assert not held[0].is_settled
    assert not held[0].is_lost
    assert "too late" not in caplog.text
    assert len(made.acked) == 1


async def test_deleted_queue_ends_the_worker_after_what_it_holds(queue: headway.Queue, by: By) -> None:
    await queue.put_many([b"1"])
    gate = _Gate()

    async def worker() -> None:
        with pytest.raises(headway.QueueNotFound):
            await queue.run(gate, concurrency=2, by=by)

    async with asyncio.TaskGroup() as group:
        group.create_task(worker())
        await gate.wait_for(1)
        await queue.delete()
        gate.opened.set()


async def test_iterating_hands_out_as_many_as_may_be_held(queue: headway.Queue, made: FakeQueue, by: By) -> None:
    await queue.put_many([b"%d" % i for i in range(9)])
    await queue.close()
    held: list[int] = []

    async def handle(lease: headway.Lease) -> None:
        async with lease:
            held.append(len(made.leased))

    async with asyncio.TaskGroup() as group:
        async for lease in queue.work(concurrency=3, by=by):
            group.create_task(handle(lease))
    assert len(made.acked) == 9
    assert max(held) <= 3


async def test_iterating_holds_one_when_worked_on_in_the_loop(queue: headway.Queue, made: FakeQueue, by: By) -> None:
    await queue.put_many([b"1", b"2", b"3"])
    await queue.close()
    async for lease in queue.work(concurrency=8, by=by):
        async with lease:
            assert len(made.leased) == 1
    assert made.most_leased == 1
    assert len(made.acked) == 3


async def test_leaving_the_loop_leaves_nothing_leased(
    service: FakeService, queue: headway.Queue, made: FakeQueue, by: By
) -> None:
    await queue.put_many([b"1", b"2", b"3"])
    async with aclosing(queue.work(concurrency=3, by=by)) as leases:
        async for lease in leases:
            async with lease:
                break
    await service.wait_for(lambda: not made.leased)
    assert len(made.line) == 2


async def test_lease_may_be_taken_out_of_the_loop(
    service: FakeService, queue: headway.Queue, made: FakeQueue, by: By
) -> None:
    await queue.put_many([b"1", b"2"])
    async for lease in queue.work(by=by):
        taken = lease
        break
    assert (await taken.ack()).settled == Settled.SETTLED_ACKED
    await service.wait_for(lambda: not service.live_streams)  # a loop that is only left ends its stream a little later
    assert [held.message.payload for held in made.line] == [b"2"]
    assert [message.payload for message in made.acked] == [b"1"]


async def test_lease_that_is_never_settled_does_not_block_for_ever(
    queue: headway.Queue, made: FakeQueue, by: By
) -> None:
    await queue.put_many([b"1", b"2"])
    seen = []
    async for lease in queue.work(concurrency=1, lease=timedelta(milliseconds=100)):
        seen.append(lease.payload)
        if len(seen) == 2:
            break
    assert seen == [b"1", b"2"]


@pytest.mark.parametrize("concurrency", [0, -1])
async def test_concurrency_below_one_is_refused(queue: headway.Queue, concurrency: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        await queue.run(_nothing, concurrency=concurrency, by="calls")
    with pytest.raises(ValueError, match="at least 1"):
        await anext(queue.work(concurrency=concurrency, by="calls"))


async def test_result_of_a_handler_is_kept_with_the_outcome(
    service: FakeService, queue: headway.Queue, made: FakeQueue, by: By
) -> None:
    await queue.put_many([b"1", b"2", b"3"])
    await queue.close()

    async def handle(lease: headway.Lease) -> object:
        return b"done " + lease.payload if lease.payload != b"2" else "not bytes, so no result"

    service.fail_next("Ack", LOST)
    await queue.run(handle, by=by)
    assert [result for result in made.results if result] == [b"done 1", b"done 3"]
    assert [m.payload for m in made.acked] == [b"1", b"2", b"3"]


async def test_message_whose_result_grpc_itself_refuses_goes_to_the_backoff(
    queue: headway.Queue, made: FakeQueue, by: By
) -> None:
    await queue.put_many([b"1", b"2"])
    stop = asyncio.Event()

    async def handle(lease: headway.Lease) -> bytes:
        if lease.payload == b"2":
            stop.set()
        return b"x" * (1 if lease.payload == b"2" else 5 * 1024 * 1024)

    async with asyncio.timeout(30):
        await queue.run(handle, stop=stop, by=by)
    assert made.reasons == ["headway.core.errors.TooLarge"]
    assert [m.payload for m in made.acked] == [b"2"]


async def test_message_whose_result_is_refused_goes_to_the_backoff(
    service: FakeService, queue: headway.Queue, made: FakeQueue, by: By
) -> None:
    await queue.put_many([b"1", b"2"])
    stop = asyncio.Event()

    async def handle(lease: headway.Lease) -> bytes:
        if lease.payload == b"2":
            stop.set()
        return b"x" * 5000

    service.fail_next("Ack", Failure(code=grpc.StatusCode.INVALID_ARGUMENT, reason="FIELD_INVALID"))
    await queue.run(handle, stop=stop, by=by)
    assert made.reasons == ["headway.core.errors.FieldInvalid"]
    assert [m.payload for m in made.acked] == [b"2"]
