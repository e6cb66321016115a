"""Acks of a worker on a stream, waited for or not, and what becomes of them when stream or worker ends first."""

import asyncio
from collections import Counter

import grpc
import pytest

import headway
from client.conftest import client_tasks
from client.fake_service import Failure, FakeQueue, FakeService
from headway._consuming_stream import ConsumingStream
from headway._duplex import Duplex
from headway.v1 import queue_service_pb2 as pb

AWAY = Failure(code=grpc.StatusCode.UNAVAILABLE, reason="SHUTTING_DOWN")
LOST = Failure(code=grpc.StatusCode.UNAVAILABLE, reason="OUTCOME_UNKNOWN", is_after=True)
_AHEAD = pytest.mark.parametrize("prefetch", [0, 2], ids=["acks are waited for", "acks are not waited for"])


async def _nothing(lease: headway.Lease) -> None:
    """A handler that has nothing to do."""


@_AHEAD
async def test_ack_whose_answer_is_lost_is_not_too_late(
    service: FakeService, queue: headway.Queue, made: FakeQueue, caplog: pytest.LogCaptureFixture, prefetch: int
) -> None:
    await queue.put_many([b"1", b"2", b"3"])
    await queue.close()
    service.fail_next("Ack", LOST)
    await queue.run(_nothing, prefetch=prefetch)
    assert sorted(m.payload for m in made.acked) == [b"1", b"2", b"3"]
    assert "too late" not in caplog.text


@_AHEAD
async def test_lease_that_lapsed_before_its_ack_is_said_to_be_too_late(
    service: FakeService, queue: headway.Queue, made: FakeQueue, caplog: pytest.LogCaptureFixture, prefetch: int
) -> None:
    await queue.put_many([b"1", b"2"])
    stop = asyncio.Event()
    held: list[headway.Lease] = []

    async def handle(lease: headway.Lease) -> None:
        held.append(lease)
        if lease.attempt == 1 and lease.payload == b"1":
            await service.lapse("q")
        elif lease.attempt > 1:
            stop.set()

    await queue.run(handle, prefetch=prefetch, stop=stop)
    assert caplog.text.count("ack came too late") >= 1
    assert held[0].is_lost
    assert len(made.acked) + len(made.line) == 2


async def test_worker_returns_when_what_is_handled_is_acked(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put_many([b"1", b"2", b"3"])
    gate = service.hold_next("Ack")
    stop, handled = asyncio.Event(), list[headway.Lease]()

    async def handle(lease: headway.Lease) -> None:
        handled.append(lease)

    running = asyncio.create_task(queue.run(handle, prefetch=2, stop=stop))
    await service.wait_for(lambda: len(made.acked) == 3)
    stop.set()
    await asyncio.sleep(0.1)
    assert not running.done()
    assert all(lease.is_ending and not lease.is_settled for lease in handled)
    gate.set()
    await running
    assert all(lease.is_settled and not lease.is_lost for lease in handled)
    assert not client_tasks()


@_AHEAD
async def test_worker_that_stops_acks_by_calls_what_its_stream_did_not(
    service: FakeService, queue: headway.Queue, made: FakeQueue, prefetch: int
) -> None:
    await queue.put_many([b"1", b"2", b"3"])
    service.keeps_leases = True  # as when a service process dies and its successor knows the leases
    service.fail_next("Ack", AWAY)
    stop, handled = asyncio.Event(), list[bytes]()

    async def handle(lease: headway.Lease) -> None:
        handled.append(lease.payload)
        if len(handled) == prefetch + 1:
            stop.set()

    await queue.run(handle, prefetch=prefetch, stop=stop)
    assert [message.payload for message in made.acked] == handled
    assert len(service.requests("Consume")) == 1
    assert not client_tasks()


async def test_worker_is_cancelled_though_its_acks_are_not_answered(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put_many([b"1", b"2", b"3"])
    gate = service.hold_next("Ack")
    running = asyncio.create_task(queue.run(_nothing, prefetch=2))
    await service.wait_for(lambda: len(made.acked) == 3)
    running.cancel()
    await service.break_streams()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not client_tasks()
    assert not [request for request in service.requests("Ack") if not request.leases]
    assert len(service.requests("Ack")) == 1


async def test_what_is_acked_while_a_stream_ends_is_answered_once(
    queue: headway.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    stream = ConsumingStream(queue, pb.ConsumeStart(queue="q"), most=10)

    class Ending:
        """A call whose other side reads nothing and ends; then whoever acks comes before those left are told."""

        async def write(self, _: object) -> bool:
            await asyncio.Event().wait()
            return True

        async def read(self) -> None:
            await asyncio.sleep(0)  # the start is taken, and the first ack left

        def cancel(self) -> None:
            stream.ack("2", lambda *_: told.append("2"))

    monkeypatch.setattr(Duplex, "begin", lambda *_: Ending())
    stream.ack("1", lambda *_: told.append("1"))
    await stream.run(lambda _: None)
    assert sorted(told) == ["1", "2"]


async def test_handlers_that_wait_for_nothing_leave_others_their_turn(queue: headway.Queue) -> None:
    await queue.put_many([b"x"] * 300)
    await queue.close()
    turn, handled_in = 0, list[int]()

    async def handle(_: headway.Lease) -> None:
        handled_in.append(turn)

    async def count() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    counting = asyncio.create_task(count())
    await queue.run(handle, prefetch=299)
    counting.cancel()
    assert len(handled_in) == 300
    assert max(Counter(handled_in).values()) <= 100


@_AHEAD
@pytest.mark.parametrize("method", ["Consume", "Describe", "GetServerInfo", "Ack"])
async def test_worker_lives_through_a_service_that_is_away(
    service: FakeService, queue: headway.Queue, made: FakeQueue, method: str, prefetch: int
) -> None:
    await queue.put_many([b"1", b"2"])
    await queue.close()
    queue = headway.connect(service.address).queue("q")
    service.failures[method] = [AWAY] * 5
    await queue.run(_nothing, prefetch=prefetch)
    assert {m.payload for m in made.acked} == {b"1", b"2"}
    await queue.client.close()
