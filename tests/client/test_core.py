"""The core alone: what it needs, and what the rest of the client does not use of it."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import grpc
import pytest
import pytest_asyncio

from client.fake_service import Failure, FakeQueue, FakeService
from headway.core import Connection, Lease, Worker, connecting, errors, watch, working
from headway.v1 import admin_service_pb2 as admin_pb
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Delivery, Message, OnDuplicate, Settled, SettleResult

LOST = Failure(code=grpc.StatusCode.UNAVAILABLE, reason="OUTCOME_UNKNOWN", is_after=True)
HALF_A_MINUTE = timedelta(seconds=30)


@pytest_asyncio.fixture
async def connection(service: FakeService) -> AsyncIterator[Connection]:
    async with Connection(service.address) as opened:
        yield opened


async def _put(connection: Connection, *messages: Message) -> pb.PutResponse:
    return await connection.call(connection.queues.Put, pb.PutRequest(queue="q", messages=messages))


def test_core_needs_nothing_of_what_is_built_on_it() -> None:
    code = (
        "import sys, headway.core, headway.core.trace;"
        "print([m for m in sys.modules if m.startswith(('headway._', 'headway.cli'))])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.strip() == b"[]"


def test_what_is_secret_is_not_shown() -> None:
    connection = Connection(metadata=(("authorization", "a token"),))
    lease = Lease(connection, "q", Delivery(lease="a lease"), HALF_A_MINUTE)
    assert "a token" not in repr(connection) + repr(lease)
    assert "a lease" not in repr(lease)


@pytest.mark.parametrize(
    ("told", "target"),
    [
        (" 127.0.0.1:1 ", "127.0.0.1:1"),
        ("127.0.0.1:1, 127.0.0.1:2,", "ipv4:127.0.0.1:1,127.0.0.1:2"),
        ("[::1]:1 , [::1]:2", "ipv6:[::1]:1,[::1]:2"),
        ("", "127.0.0.1:7420"),
        (" ", "127.0.0.1:7420"),
    ],
)
def test_blanks_around_addresses_do_not_count(monkeypatch: pytest.MonkeyPatch, told: str, target: str) -> None:
    monkeypatch.setenv("HEADWAY_ADDRESS", told)
    assert Connection().target == Connection(told).target == target


@pytest.mark.parametrize(
    ("request_", "share"),
    [
        (pb.CloseRequest(queue="q"), 1.0),
        (pb.DeleteRequest(queue="q"), 1.0),
        (admin_pb.PurgeRequest(queue="q"), 1.0),
        (admin_pb.RepairRequest(queue="q"), 1.0),
        (pb.PutRequest(queue="q", messages=[Message(id="a"), Message()]), 1.0),
        (pb.GetRequest(queue="q"), 1.0),
        (pb.PutRequest(queue="q", messages=[Message(id="a"), Message(id="b")]), 0.5),
        (pb.GetRequest(queue="q", attempt_id="mine"), 0.5),
        (pb.AckRequest(queue="q", leases=["token"]), 0.5),
        (pb.DescribeRequest(queue="q"), 0.5),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_only_what_may_be_made_again_leaves_time_for_that(request_: Any, share: float) -> None:
    given: list[float] = []

    async def answer(_: object, *, timeout: float, metadata: object) -> None:
        given.append(timeout)

    await Connection(call_timeout=timedelta(hours=1)).call(answer, request_)
    assert given == [pytest.approx(3600 * share, rel=0.1)]


async def test_put_that_is_repeated_keeps_what_the_first_try_put(
    service: FakeService, connection: Connection, made: FakeQueue
) -> None:
    service.fail_next("Put", LOST)
    answer = await _put(connection, Message(id="a", payload=b"1"))
    assert answer.results[0].deduplicated
    assert service.requests("Put")[1].on_duplicate == OnDuplicate.ON_DUPLICATE_KEEP
    assert len(made.line) == 1


async def test_ack_of_the_core_is_too_late_for_a_message_that_is_dead(
    service: FakeService, connection: Connection, made: FakeQueue
) -> None:
    await _put(connection, Message(payload=b"1"))
    lease = await Lease.get(connection, "q", lease=HALF_A_MINUTE)
    assert lease is not None
    await service.lapse("q", is_last=True)
    with pytest.raises(errors.LeaseStale, match="the message is dead"):
        await lease.ack()
    assert lease.is_lost


@pytest.mark.parametrize("left_ms", [40_000, 50, None], ids=["told", "given again, about to lapse", "foreign"])
async def test_lease_without_a_span_lasts_as_long_as_the_policy_says(
    service: FakeService, connection: Connection, made: FakeQueue, monkeypatch: pytest.MonkeyPatch, left_ms: int | None
) -> None:
    delivery = Delivery(lease="token", message=Message(payload=b"1"))
    delivery.lease_expires_at.FromSeconds(1_000_100)
    if left_ms is not None:
        delivery.put_at.FromMilliseconds(1_000_100_000 - 60_000 - left_ms)
        delivery.waited.FromSeconds(60)
    is_told = left_ms == 40_000

    asked: list[pb.ExtendRequest] = []

    async def answer(_: object, __: object, request: object, **___: object) -> pb.GetResponse | pb.ExtendResponse:
        if isinstance(request, pb.ExtendRequest):
            asked.append(request)
            return pb.ExtendResponse(results=[SettleResult(settled=Settled.SETTLED_EXTENDED)])
        return pb.GetResponse(deliveries=[delivery])

    monkeypatch.setattr(Connection, "call", answer)
    lease = await Lease.get(connection, "q")
    assert lease is not None
    assert lease.span == (timedelta(seconds=40) if is_told else timedelta(milliseconds=100))
    assert await lease.confirm(within=1)
    await lease.progress(0.5, "half")
    assert [each.HasField("lease") for each in asked] == [is_told] * 2  # unset: what the policy says
    assert asked[1].progress.note == "half"


async def test_lease_whose_answer_was_lost_is_extended_before_a_third_of_its_span(
    service: FakeService, connection: Connection, made: FakeQueue
) -> None:
    await _put(connection, Message(payload=b"1"))
    service.fail_next("Get", LOST)
    lease = await Lease.get(connection, "q", lease=timedelta(hours=1))  # of which most may be over
    assert lease is not None
    async with asyncio.timeout(30), lease.held():
        await service.wait_for(lambda: service.requests("Extend"))


async def test_handler_that_is_cancelled_by_nobody_here_has_failed(
    service: FakeService, connection: Connection, made: FakeQueue
) -> None:
    await _put(connection, Message(payload=b"bad"), Message(payload=b"good"))
    stop = asyncio.Event()

    async def handle(lease: Lease) -> bytes:
        if lease.delivery.message.payload == b"bad":
            raise asyncio.CancelledError
        stop.set()
        return b"done"

    async with asyncio.timeout(30):
        await Worker(connection, "q", handle, lease=HALF_A_MINUTE, stop=stop).run()
    assert made.reasons == ["asyncio.exceptions.CancelledError"]
    assert made.results == [b"done"]


async def test_handler_that_cannot_be_awaited_ends_the_worker_at_its_first_message(
    service: FakeService, connection: Connection, made: FakeQueue
) -> None:
    await _put(connection, Message(payload=b"1"), Message(payload=b"2"))
    seen: list[bytes] = []

    def handle(lease: Lease) -> None:
        seen.append(lease.delivery.message.payload)

    plain: Any = handle
    async with asyncio.timeout(30):
        with pytest.raises(TypeError, match="await"):
            await Worker(connection, "q", plain).run()
    assert (seen, made.reasons) == ([b"1"], ["TypeError"])
    assert (len(made.delayed), len(made.line)) == (1, 1)


async def test_result_is_acked_after_an_outage_of_more_than_five_tries(
    service: FakeService, connection: Connection, made: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "backoff_seconds", lambda *_: 0.01)
    await _put(connection, Message(payload=b"1"))
    service.fail_next("Ack", Failure(code=grpc.StatusCode.UNAVAILABLE, reason="STORE_UNAVAILABLE"), times=12)
    stop = asyncio.Event()

    async def handle(lease: Lease) -> bytes:
        stop.set()
        return b"done"

    async with asyncio.timeout(30):
        await Worker(connection, "q", handle, lease=HALF_A_MINUTE, stop=stop).run()
    assert made.results == [b"done"]
    assert not made.reasons


async def test_failure_that_no_waiting_mends_ends_the_worker(connection: Connection) -> None:
    async def handle(lease: Lease) -> None:
        raise AssertionError("there is nothing to handle")

    async with asyncio.timeout(30):
        with pytest.raises(errors.QueueNotFound):
            await Worker(connection, "nobody-made-this", handle, concurrency=3).run()
        with pytest.raises(ValueError, match="at least 1"):
            await Worker(connection, "q", handle, concurrency=0).run()


async def test_what_could_not_be_given_back_is_not_acked(
    service: FakeService, connection: Connection, made: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "backoff_seconds", lambda *_: 0.01)
    await _put(connection, Message(payload=b"1"), Message(payload=b"2"))
    service.fail_next("Delay", LOST, times=10)  # as often as two calls are made
    stop = asyncio.Event()

    async def handle(lease: Lease) -> bytes:
        await lease.give_back(failed_with="no")
        if lease.delivery.message.payload == b"2":
            stop.set()
        return b"done"

    async with asyncio.timeout(30):
        await Worker(connection, "q", handle, lease=HALF_A_MINUTE, stop=stop).run()
    assert len(service.requests("Delay")) == 10
    assert not made.acked
    assert not service.requests("Ack")


async def test_worker_goes_on_when_the_service_is_back(
    service: FakeService, connection: Connection, made: FakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    await _put(connection, Message(payload=b"1"))
    service.fail_next("Get", Failure(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="OVERLOADED"), times=2)
    stop = asyncio.Event()

    async def handle(lease: Lease) -> None:
        stop.set()

    async with asyncio.timeout(30):
        await Worker(connection, "q", handle, lease=HALF_A_MINUTE, stop=stop).run()
    assert len(made.acked) == 1
    assert caplog.text.count("trying again until it works") == 1


async def test_worker_keeps_the_name_of_its_get_until_one_is_answered_and_extends_at_once_what_that_brings(
    service: FakeService, connection: Connection, made: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "backoff_seconds", lambda *_: 0.01)
    await _put(connection, Message(payload=b"1"), Message(payload=b"2"))
    service.fail_next("Get", LOST, times=5)  # as often as a call is made
    stop = asyncio.Event()

    async def handle(lease: Lease) -> None:
        if lease.delivery.message.payload == b"1":
            await service.wait_for(lambda: service.requests("Extend"))  # most of its hour may be over
        else:
            stop.set()

    async with asyncio.timeout(30):
        await Worker(connection, "q", handle, lease=timedelta(hours=1), stop=stop).run()
    assert len(made.acked) == 2
    *lost, answered, other = [request.attempt_id for request in service.requests("Get")]
    assert lost == [answered] * 5
    assert other != answered


async def test_worker_that_is_stopped_behind_a_lost_answer_gives_back_what_that_leased(
    service: FakeService, connection: Connection, made: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "backoff_seconds", lambda *_: 0.01)
    monkeypatch.setattr(working, "pause_seconds", lambda *_: 60.0)
    await _put(connection, Message(payload=b"1"))
    service.fail_next("Get", LOST, times=5)
    stop = asyncio.Event()

    async def handle(_: Lease) -> None:
        raise AssertionError

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(Worker(connection, "q", handle, stop=stop).run())
        await service.wait_for(lambda: len(service.requests("Get")) == 5)
        stop.set()
    *lost, last = service.requests("Get")
    assert [each.attempt_id for each in lost] == [last.attempt_id] * len(lost)
    assert not last.HasField("wait")
    assert [each.keep_attempt for each in service.requests("Delay")] == [True]


async def test_worker_that_is_cancelled_in_the_pause_behind_a_lost_answer_gives_back_what_that_leased(
    service: FakeService, connection: Connection, made: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = asyncio.Event()

    def pause_seconds(*_: object) -> float:
        paused.set()
        return 60.0

    monkeypatch.setattr(connecting, "backoff_seconds", lambda *_: 0.01)
    monkeypatch.setattr(working, "pause_seconds", pause_seconds)
    await _put(connection, Message(payload=b"1"))
    service.fail_next("Get", LOST, times=5)

    async def handle(_: Lease) -> None:
        raise AssertionError

    async with asyncio.timeout(30):
        at_work = asyncio.create_task(Worker(connection, "q", handle).run())
        await paused.wait()
        at_work.cancel()
        await asyncio.wait([at_work])
    assert at_work.cancelled()
    *lost, last = service.requests("Get")
    assert [each.attempt_id for each in lost] == [last.attempt_id] * len(lost)
    assert not last.HasField("wait")
    assert [each.keep_attempt for each in service.requests("Delay")] == [True]


async def test_watch_yields_the_generated_messages_until_the_last_word(
    service: FakeService, connection: Connection, made: FakeQueue
) -> None:
    await _put(connection, Message(id="a", payload=b"1"))
    async with asyncio.timeout(30), aclosing(watch(connection, "q", ["a", "nobody"])) as answers:
        kinds = [(await anext(answers)).WhichOneof("event") for _ in range(2)]
        assert sorted(map(str, kinds)) == ["finished", "position"]
        lease = await Lease.get(connection, "q", lease=HALF_A_MINUTE)
        assert lease is not None
        async with lease.held():
            assert (await anext(answers)).leased.id == "a"
        assert [answer.finished.outcome async for answer in answers] == [pb.OUTCOME_DONE]
