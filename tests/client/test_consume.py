"""Workers on a stream: what goes together, what is leased ahead, and what becomes of leases when it breaks."""

import asyncio
import weakref
from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any, Literal

import grpc
import pytest

import headway
from client.conftest import client_tasks
from client.fake_service import Failure, FakeQueue, FakeService
from harness import eventually
from headway._keeping import Keeping
from headway.core import Worker
from headway.v1.message_pb2 import Delivery, Settled, SettleResult

AWAY = Failure(code=grpc.StatusCode.UNAVAILABLE, reason="SHUTTING_DOWN")
HOUR = timedelta(hours=1)


class _Inside:
    """A handler that lets its messages out on command."""

    def __init__(self) -> None:
        self.leases: list[headway.Lease] = []
        self.may_go = asyncio.Event()

    async def __call__(self, lease: headway.Lease) -> None:
        self.leases.append(lease)
        await self.may_go.wait()


async def _nothing(lease: headway.Lease) -> None:
    """A handler that has nothing to do."""


async def _ignore(lease: object) -> None:
    """The same for whatever lease it is."""


def _is(made: FakeQueue, *, leased: int) -> bool:
    return len(made.leased) == leased


async def test_acks_of_what_ends_together_go_together(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put_many([b"x"] * 20)
    await queue.close()
    handler = _Inside()
    async with asyncio.TaskGroup() as group:
        group.create_task(queue.run(handler, concurrency=20))
        await eventually(lambda: _done(len(handler.leases) == 20))
        handler.may_go.set()
    assert [len(request.leases) for request in service.requests("Ack")] == [20]
    assert len(service.requests("Consume")) == 1
    assert not service.requests("Get")
    assert len(made.acked) == 20
    assert not client_tasks()


async def _done(claim: bool) -> bool:
    return claim


async def test_prefetch_is_leased_ahead_and_given_back_unbegun(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put_many([b"%d" % n for n in range(10)])
    handler, stop = _Inside(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(queue.run(handler, concurrency=2, prefetch=3, stop=stop))
        await eventually(lambda: _done(len(handler.leases) == 2))
        assert len(made.leased) == 5
        stop.set()
        await service.wait_for(lambda: _is(made, leased=2))
        assert sorted(held.ticket for held in made.line) == list(range(3, 11))
        assert all(held.attempt == 1 for held in made.line)
        handler.may_go.set()
    assert [lease.payload for lease in handler.leases] == [b"0", b"1"]
    assert len(made.acked) == 2


async def test_all_leases_are_kept_alive_together(service: FakeService, queue: headway.Queue, made: FakeQueue) -> None:
    await queue.put_many([b"x"] * 5)
    await queue.close()
    handler = _Inside()
    async with asyncio.TaskGroup() as group:
        group.create_task(queue.run(handler, concurrency=3, prefetch=2, lease=timedelta(milliseconds=150)))
        await service.wait_for(lambda: len(service.requests("Extend")) >= 8)
        handler.may_go.set()
    assert max(len(request.leases) for request in service.requests("Extend")) == 5
    assert {request.lease.ToMilliseconds() for request in service.requests("Extend")} == {150}  # as it was asked
    assert len(made.acked) == 5


async def test_what_is_settled_is_forgotten_before_it_would_have_been_extended(queue: headway.Queue) -> None:
    await queue.put_many([b"x"] * 5000)
    await queue.close()
    alive: weakref.WeakSet[headway.Lease] = weakref.WeakSet()
    most = 0

    async def handle(lease: headway.Lease) -> None:
        nonlocal most
        alive.add(lease)
        most = max(most, len(alive))

    await queue.run(handle, concurrency=5, prefetch=20, lease=HOUR)
    assert most <= 4 * 25  # those leased, and those whose acks are on the way


async def test_what_is_kept_is_extended_in_time_while_many_others_come_and_go(
    service: FakeService, queue: headway.Queue
) -> None:
    await queue.put_many([b"long", *[b"short"] * 1000])
    await queue.close()
    handled = 0
    mine = ""

    def extends() -> int:
        return sum(mine in request.leases for request in service.requests("Extend"))

    async def handle(lease: headway.Lease) -> None:
        nonlocal handled, mine
        if lease.payload == b"long":
            mine = lease.token
            await eventually(lambda: _done(handled == 1000))
            seen = extends()
            await service.wait_for(lambda: extends() >= seen + 2)
            assert not lease.is_lost
        else:
            handled += 1

    await queue.run(handle, concurrency=2, lease=timedelta(milliseconds=600))
    assert handled == 1000


async def test_book_of_what_is_kept_stays_small() -> None:
    asked: list[str] = []

    async def extend(tokens: Sequence[str], _: timedelta | None) -> list[SettleResult]:
        asked.extend(tokens)
        return [SettleResult(lease=token, settled=Settled.SETTLED_EXTENDED) for token in tokens]

    client = headway.connect("127.0.0.1:1")
    keeping = Keeping(extend, lease=HOUR, longest=HOUR, most=100)
    leases = [headway.Lease(client.queue("q"), Delivery(lease=f"{n}"), span=HOUR) for n in range(5000)]
    keeping.keep(leases[:1])
    for each in leases[1:]:
        keeping.keep([each])
        keeping.let_go(each)
        assert len(keeping._due) < 200
    keeping.ask_all()
    keeper = asyncio.create_task(keeping.run())
    await eventually(lambda: _done(asked == ["0"]))
    keeper.cancel()
    await asyncio.wait([keeper])
    await client.close()


async def test_what_is_kept_alive_already_follows_the_policy(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    made.policy.lease.FromMilliseconds(600)
    handler = _Inside()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(queue.run(handler, concurrency=2))
        await queue.put(b"1")
        await service.wait_for(lambda: service.requests("Extend"))
        made.policy.lease.FromTimedelta(HOUR)
        await queue.put(b"2")
        await eventually(lambda: _done(len(handler.leases) == 2))
        assert handler.leases[1].span == HOUR
        await eventually(lambda: _done(handler.leases[0].span == HOUR))
        await queue.close()
        handler.may_go.set()
    extends = service.requests("Extend")
    assert not any(request.HasField("lease") for request in extends)  # the policy has the say
    assert {token for request in extends for token in request.leases} == {handler.leases[0].token}
    assert not service.requests("Consume")[0].HasField("lease")


async def test_what_is_kept_alive_is_extended_sooner_where_the_policy_grows_shorter(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    made.policy.lease.FromSeconds(3)
    handler = _Inside()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(queue.run(handler))
        await queue.put(b"1")
        await queue.close()
        await eventually(lambda: _done(len(handler.leases) == 1))
        made.policy.lease.FromMilliseconds(150)
        # Of the first one's answer: no delivery has told it.
        await eventually(lambda: _done(handler.leases[0].span < timedelta(seconds=1.5)))
        handler.may_go.set()


async def test_delivery_that_is_made_again_and_lapses_soon_shortens_no_lease(
    service: FakeService, queue: headway.Queue, made: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    span = timedelta(seconds=3)
    made.policy.lease.FromTimedelta(span)
    handler, given = _Inside(), made.delivery

    def again(token: str, asked: Any) -> Delivery:
        told = given(token, asked)
        told.lease_expires_at.FromDatetime(told.lease_expires_at.ToDatetime() - timedelta(seconds=2.8))
        return told

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(queue.run(handler, concurrency=2))
        await queue.put(b"1")
        await eventually(lambda: _done(len(handler.leases) == 1))
        monkeypatch.setattr(made, "delivery", again)
        await queue.put(b"2")
        await eventually(lambda: _done(len(handler.leases) == 2))
        await eventually(lambda: _done(handler.leases[1].span == span))  # as it lasts since it was extended
        await service.wait_for(lambda: handler.leases[0].token in service.requests("Extend")[-1].leases)
        await queue.close()
        handler.may_go.set()
    assert not any(request.HasField("lease") for request in service.requests("Extend"))
    assert handler.leases[0].span == span


async def test_leases_are_kept_alive_over_a_service_that_is_away(
    service: FakeService, queue: headway.Queue, made: FakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    await queue.put(b"1")
    await queue.close()
    service.keeps_leases = True
    service.fail_next("Extend", AWAY, times=7)  # the stream, then a call with all its tries, then one more
    handler = _Inside()
    async with asyncio.TaskGroup() as group:
        group.create_task(queue.run(handler, lease=timedelta(milliseconds=600)))
        await service.wait_for(lambda: len(service.requests("Extend")) >= 9)
        assert not handler.leases[0].is_lost
        handler.may_go.set()
    assert "could not extend" in caplog.text
    assert len(handler.leases) == len(made.acked) == 1


async def test_leases_of_a_broken_stream_are_asked_after_and_worked_on_again(
    service: FakeService, queue: headway.Queue, made: FakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    await queue.put_many([b"1", b"2"])
    await queue.close()
    first, rest = _Inside(), asyncio.Event()
    seen: list[str] = []

    async def handle(lease: headway.Lease) -> None:
        seen.append(lease.id)
        if not rest.is_set():
            await first(lease)

    async with asyncio.TaskGroup() as group:
        group.create_task(queue.run(handle, concurrency=2, lease=HOUR))
        await eventually(lambda: _done(len(first.leases) == 2))
        await service.break_streams()
        await eventually(lambda: _done(all(lease.is_lost for lease in first.leases)))
        rest.set()
        first.may_go.set()
    assert sorted(seen) == ["~1", "~1", "~2", "~2"]
    assert len(made.acked) == 2
    assert "stale" in caplog.text


async def test_no_more_is_held_than_allowed_while_leases_of_a_broken_stream_live_on(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    """The service may not have noticed yet."""
    await queue.put_many([b"%d" % n for n in range(6)])
    handler = _Inside()
    service.keeps_leases = True
    task = asyncio.create_task(queue.run(handler, concurrency=2, lease=HOUR))
    await eventually(lambda: _done(len(handler.leases) == 2))
    await service.break_streams()
    await service.wait_for(lambda: len(service.requests("Consume")) == 2)
    assert service.requests("Consume")[1].credit.messages == 0
    handler.may_go.set()
    await service.wait_for(lambda: len(made.acked) == 6)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert made.most_leased == 2


async def test_worker_goes_on_by_calls_where_there_are_no_streams(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    not_served = Failure(code=grpc.StatusCode.UNIMPLEMENTED)
    await queue.put_many([b"1", b"2"])
    await queue.close()
    service.fail_next("Consume", not_served, times=2)
    stop = asyncio.Event()

    async def handle(lease: headway.Lease) -> None:
        stop.set()

    await queue.run(handle, stop=stop)
    async for lease in queue.work():
        await lease.ack()
    assert len(made.acked) == 2
    assert len(service.requests("Consume")) == 2
    assert service.requests("Get")


async def test_settling_in_one_s_own_way_goes_on_the_stream(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put_many([b"%d" % n for n in range(5)])

    async def handle(lease: headway.Lease) -> bytes | None:
        match lease.payload:
            case b"0":
                await lease.progress(0.5, "half")
                assert made.leased[lease.token].progress is not None
                return b"result"
            case b"1":
                await lease.delay(HOUR, reason="later")
            case b"2":
                await lease.delay(timedelta(days=1000))  # more than the service takes: it is to say so itself
            case b"3":
                await lease.ack(b"mine")
            case _:
                stop.set()
        return None

    stop = asyncio.Event()
    await queue.run(handle, stop=stop)
    assert service.unary_calls & {"Ack", "Delay", "Extend", "Get"} == {"Delay"}
    assert made.results == [b"result", b"mine", b""]
    assert len(made.delayed) == 2


async def test_loop_that_settles_each_has_nothing_leased_ahead(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put_many([b"%d" % n for n in range(5)])
    async with aclosing(queue.work(concurrency=4)) as leases:
        for _ in range(3):
            lease = await anext(leases)
            assert len(made.leased) == 1
            async with lease:
                pass
    await service.wait_for(lambda: _is(made, leased=0))
    assert [held.message.payload for held in made.line] == [b"3", b"4"]
    assert made.most_leased == 1
    assert not client_tasks()


async def test_what_was_yielded_stays_with_its_holder_when_the_loop_is_left(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put_many([b"%d" % n for n in range(5)])
    async with aclosing(queue.work(prefetch=2, lease=timedelta(milliseconds=300))) as leases:
        taken = await anext(leases)
    await service.wait_for(lambda: _is(made, leased=1))
    async with taken:
        await service.wait_for(lambda: len(service.requests("Extend")) >= 4)
    assert [message.payload for message in made.acked] == [b"0"]
    await eventually(lambda: _done(not client_tasks()))
    assert not service.live_streams


async def test_what_nobody_settles_lapses_behind_the_loop(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put(b"1")
    async with aclosing(queue.work(lease=timedelta(milliseconds=100))) as leases:
        await anext(leases)
    assert service.live_streams
    await eventually(lambda: _done(not client_tasks()))
    await service.wait_for(lambda: not service.live_streams)


async def test_client_that_closes_ends_what_a_loop_left_behind(service: FakeService, made: FakeQueue) -> None:
    async with headway.connect(service.address) as client:
        await client.queue("q").put(b"1")
        async with aclosing(client.queue("q").work(lease=HOUR)) as leases:
            await anext(leases)
        assert client_tasks()
    assert not client_tasks()
    await service.wait_for(lambda: not made.leased)


async def test_client_that_closes_ends_what_a_loop_keeps_that_nobody_ended(
    service: FakeService, made: FakeQueue
) -> None:
    async with headway.connect(service.address) as client:
        await client.queue("q").put(b"1")
        leases = client.queue("q").work(lease=HOUR)
        await anext(leases)
        assert client_tasks()
    await eventually(lambda: _done(not client_tasks()))
    await service.wait_for(lambda: not made.leased)
    await leases.aclose()


@pytest.mark.parametrize("turns", range(8))
async def test_client_that_closes_while_a_loop_ends_leaves_nothing_behind(
    service: FakeService, made: FakeQueue, turns: int
) -> None:
    async with headway.connect(service.address) as client:
        await client.queue("q").put(b"1")
        async with aclosing(client.queue("q").work(lease=HOUR)) as leases:
            lease = await anext(leases)
        await lease.ack()
        for _ in range(turns):  # of the loop: the stream is about to end, or ends
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not client_tasks()


async def test_loop_that_takes_many_is_given_as_many_as_it_may_hold(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put_many([b"%d" % n for n in range(12)])
    async with aclosing(queue.work(concurrency=5)) as leases:
        taken = [await anext(leases) for _ in range(5)]
        waiting = asyncio.ensure_future(anext(leases))
        await taken[0].ack()
        assert (await waiting).payload == b"5"
        for lease in taken[1:]:
            await lease.release()
    assert made.most_leased == 5


async def test_loop_keeps_alive_what_it_has_not_yielded(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put_many([b"1", b"2"])
    async with aclosing(queue.work(prefetch=1, lease=timedelta(milliseconds=150))) as leases:
        async with await anext(leases) as lease:
            await service.wait_for(lambda: _is(made, leased=2) and len(service.requests("Extend")) >= 6)
            assert not lease.is_lost
        named = {token for request in service.requests("Extend") for token in request.leases}
        assert len(named) == 2


async def test_deleted_queue_ends_a_worker_that_waits(service: FakeService, queue: headway.Queue) -> None:
    async def delete() -> None:
        await service.wait_for(lambda: service.live_streams)
        await queue.delete()

    async with asyncio.TaskGroup() as group:
        group.create_task(delete())
        with pytest.raises(headway.QueueDeleted):
            await queue.run(_nothing)


async def test_worker_without_a_queue_says_so(client: headway.Client) -> None:
    with pytest.raises(headway.QueueNotFound):
        await client.queue("nobody").run(_nothing)
    with pytest.raises(headway.QueueNotFound):
        await anext(client.queue("nobody").work())


async def _iterate(queue: headway.Queue, by: Literal["stream", "calls"]) -> None:
    async for lease in queue.work(by=by):
        await lease.ack()


async def _watch(queue: headway.Queue) -> None:
    async for _ in queue.watch_queue():
        pass


async def _stand(queue: headway.Queue) -> None:
    async with queue.stand(lease=timedelta(seconds=30)) as stand:
        await stand.turn()


@pytest.mark.parametrize(
    ("method", "lasting"),
    [
        ("Consume", lambda queue: queue.run(_nothing)),
        ("Get", lambda queue: queue.run(_nothing, by="calls")),
        ("Get", lambda queue: Worker(queue.client.connection, "q", _ignore).run()),
        ("Consume", lambda queue: _iterate(queue, "stream")),
        ("Get", lambda queue: _iterate(queue, "calls")),
        ("WatchQueue", _watch),
        ("WatchPosition", _stand),
    ],
    ids=["run", "run by calls", "core", "work", "work by calls", "watch", "stand"],
)
async def test_closed_client_ends_whatever_lasts(
    service: FakeService, made: FakeQueue, method: str, lasting: Callable[[headway.Queue], Any]
) -> None:
    async with headway.connect(service.address) as client:
        task = asyncio.create_task(lasting(client.queue("q")))
        await service.wait_for(lambda: service.requests(method))
        await client.close()
        async with asyncio.timeout(30):
            with pytest.raises(headway.ClientClosed) as caught:
                await task
    assert caught.value.code is grpc.StatusCode.CANCELLED
    assert not client_tasks()


@pytest.mark.parametrize("by", ["stream", "calls", "core"])
async def test_closed_client_ends_a_worker_that_is_busy(
    service: FakeService, queue: headway.Queue, made: FakeQueue, by: Any
) -> None:
    await queue.put_many([b"1", b"2"])
    finished: list[object] = []

    async with headway.connect(service.address) as client:

        async def handle(lease: object) -> None:
            await client.close()
            finished.append(lease)

        worker = Worker(client.connection, "q", handle)
        async with asyncio.timeout(30):
            with pytest.raises(headway.ClientClosed):
                await (worker.run() if by == "core" else client.queue("q").run(handle, by=by))
        asked_count = len(service.calls)
        with pytest.raises(headway.ClientClosed):
            await client.queue("q").describe()
    assert len(finished) == 1
    assert len(service.calls) == asked_count


async def test_closed_client_can_be_used_as_a_block_once_more(service: FakeService, made: FakeQueue) -> None:
    client = headway.connect(service.address)
    for _ in range(2):
        async with client:
            await client.queue("q").put(b"1")
    assert len(made.line) == 2


async def test_worker_is_cancelled_while_it_cannot_connect() -> None:
    async with headway.connect("127.0.0.1:1") as client:
        task = asyncio.create_task(client.queue("q").run(_nothing))
        await eventually(lambda: _done(bool(client_tasks())))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not client_tasks()


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_lease_that_lapsed_unsettled_behind_a_broken_stream_makes_room(
    service: FakeService, queue: headway.Queue, concurrency: int
) -> None:
    """The new stream begins with less credit than the worker has, for the lease may live on."""
    await queue.put_many([b"1", b"2"])
    async with aclosing(queue.work(lease=timedelta(seconds=1), concurrency=concurrency)) as leases:
        for _ in range(concurrency):
            await anext(leases)
        await service.break_streams()
        await service.wait_for(lambda: len(service.requests("Consume")) == 2)
        assert service.requests("Consume")[1].credit.messages == 0
        async with asyncio.timeout(5):
            await anext(leases)
