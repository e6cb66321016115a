"""The batching producer: when batches are sent, what holds it back, and what it lives through."""

import asyncio
from collections.abc import Awaitable
from datetime import timedelta

import grpc
import pytest

import headway
from client.conftest import client_tasks
from client.fake_service import Failure, FakeQueue, FakeService
from headway._batching import Gathering
from headway.v1.message_pb2 import PutResult

AWAY = Failure(code=grpc.StatusCode.UNAVAILABLE, reason="SHUTTING_DOWN")
CUT = Failure(code=grpc.StatusCode.UNAVAILABLE, is_after=True)
LOST = Failure(code=grpc.StatusCode.UNAVAILABLE, reason="OUTCOME_UNKNOWN", is_after=True)
LONG = timedelta(hours=1)


def sizes(service: FakeService) -> list[int]:
    """How many messages each batch had."""
    return [len(request.messages) for request in service.requests("Produce")]


async def results(answers: list["asyncio.Future[PutResult]"]) -> list[PutResult]:
    async with asyncio.timeout(30):
        return list(await asyncio.gather(*answers))


async def failure_of(answer: Awaitable[PutResult]) -> headway.HeadwayError:
    async with asyncio.timeout(30):
        with pytest.raises(headway.HeadwayError) as caught:
            await answer
    return caught.value


async def test_put_answers_when_the_message_is_accepted(queue: headway.Queue, made: FakeQueue) -> None:
    async with queue.producer() as producer:
        result = await producer.put(b"x", id="a", headers={"k": "v"})
        assert (result.id, result.ticket, result.position) == ("a", 1, 1)
        assert [held.message.headers for held in made.line] == [{"k": "v"}]
        assert (await producer.put(headway.Message(payload=b"y", id="b"))).position == 2
    assert not client_tasks()


async def test_what_is_put_at_once_goes_in_one_batch(service: FakeService, queue: headway.Queue) -> None:
    async with queue.producer(linger=LONG) as producer:
        told = await asyncio.gather(*(producer.put(b"%d" % n) for n in range(50)))
    assert [each.position for each in told] == list(range(1, 51))
    assert sizes(service) == [50]


async def test_full_batch_is_sent_by_count_and_by_bytes(service: FakeService, queue: headway.Queue) -> None:
    async with queue.producer(max_batch=4, linger=LONG) as producer:
        await asyncio.gather(*(producer.put(b"x") for _ in range(8)))
    assert sizes(service) == [4, 4]
    async with queue.producer(max_bytes=2000, linger=LONG) as producer:
        await asyncio.gather(*(producer.put(b"x" * 900) for _ in range(4)))
        await producer.put(b"x" * 5000)
    assert sizes(service)[2:] == [2, 2, 1]


async def test_limits_of_the_service_bound_a_batch(service: FakeService, queue: headway.Queue) -> None:
    service.limits.max_batch_messages = 3
    async with queue.producer() as producer:
        await asyncio.gather(*(producer.put(b"x") for _ in range(7)))
    assert max(sizes(service)) == 3


async def test_batch_behind_another_waits_for_company_until_the_linger_is_over(
    service: FakeService, queue: headway.Queue
) -> None:
    gate = service.hold_next("Produce")
    async with queue.producer(linger=timedelta(milliseconds=50)) as producer:
        first = await producer.put_soon(b"1")
        await service.wait_for(lambda: sizes(service) == [1])
        rest = [await producer.put_soon(b"x") for _ in range(3)]
        assert not any(answer.done() for answer in (first, *rest))
        gate.set()
        await results([first, *rest])
    assert sizes(service) == [1, 3]


async def test_waiting_batch_is_sent_when_nothing_is_on_the_way_any_more(
    service: FakeService, queue: headway.Queue
) -> None:
    gate = service.hold_next("Produce")
    async with queue.producer(linger=LONG) as producer:
        first = await producer.put_soon(b"1")
        await service.wait_for(lambda: sizes(service) == [1])
        second = await producer.put_soon(b"2")
        gate.set()
        await results([first, second])
    assert sizes(service) == [1, 1]


async def test_flush_does_not_wait_for_company(service: FakeService, queue: headway.Queue) -> None:
    gate = service.hold_next("Produce")
    async with queue.producer(linger=LONG) as producer:
        first = await producer.put_soon(b"1")
        await service.wait_for(lambda: sizes(service) == [1])
        last = await producer.put_soon(b"2")
        flushing = asyncio.create_task(producer.flush())
        gate.set()
        await flushing
        assert first.done()
        assert last.done()
        await producer.flush()


async def test_producer_is_held_back_by_what_is_not_answered(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    made.policy.bound = 1
    async with queue.producer(max_batch=2, max_in_flight=2, linger=LONG) as producer:
        answers = [await producer.put_soon(b"%d" % n) for n in range(6)]
        seventh = asyncio.create_task(producer.put_soon(b"6"))
        await service.wait_for(lambda: len(made.line) == 1)
        assert not seventh.done()
        assert len(sizes(service)) == 1
        payloads = []
        async with asyncio.timeout(30):
            for _ in range(7):
                got = await queue.get(wait=timedelta(seconds=20))
                payloads.append(got.deliveries[0].message.payload)
        await results([*answers, await seventh])
    assert payloads == [b"%d" % n for n in range(7)]


async def test_cancelled_waiter_for_room_leaves_its_turn_to_the_next(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    gate = service.hold_next("Produce")
    async with queue.producer(max_batch=1, max_in_flight=1, linger=LONG) as producer:
        answers = [await producer.put_soon(b"1"), await producer.put_soon(b"2")]
        gone, stays = (asyncio.create_task(producer.put(payload)) for payload in (b"gone", b"stays"))
        await service.wait_for(lambda: sizes(service))
        await asyncio.sleep(0)
        gone.cancel()
        gate.set()
        await results(answers)
        await stays
    assert [held.message.payload for held in made.line] == [b"1", b"2", b"stays"]


async def test_puts_that_time_out_leave_nothing_and_others_keep_their_order(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    gate = service.hold_next("Produce")
    async with queue.producer(max_batch=1, max_in_flight=1, linger=LONG) as producer:
        answers = [await producer.put_soon(b"1"), await producer.put_soon(b"2")]
        stay: list[asyncio.Task[PutResult]] = []
        go: list[asyncio.Task[PutResult]] = []
        for n in range(5000):
            stays = n % 1000 == 500
            putting = producer.put(b"stays %d" % n if stays else b"gone")
            (stay if stays else go).append(asyncio.create_task(putting if stays else asyncio.wait_for(putting, 0.05)))
        told = await asyncio.gather(*go, return_exceptions=True)
        assert {type(each) for each in told} == {TimeoutError}
        assert producer._gathering is not None
        waiting_count = len(producer._gathering._entering)
        gate.set()
        await results(answers)
        await asyncio.gather(*stay)
    assert waiting_count == len(stay) == 5
    assert [held.message.payload for held in made.line[:2]] == [b"1", b"2"]
    assert [held.message.payload for held in made.line[2:]] == [b"stays %d" % n for n in range(500, 5000, 1000)]


def _gathering(*, max_messages: int) -> Gathering:
    return Gathering(
        max_messages=max_messages, max_bytes=2000, linger_seconds=3600, most_unanswered=1, on_sealed=lambda: None
    )


def _begin_add(gathering: Gathering, size: int) -> "asyncio.Task[asyncio.Future[PutResult]]":
    return asyncio.create_task(gathering.add(headway.Message(payload=b"x" * size)))


async def test_small_message_enters_when_a_large_one_before_it_waits_no_more() -> None:
    gathering = _gathering(max_messages=10)
    await asyncio.wait([_begin_add(gathering, 1999)])  # a batch of its own
    await asyncio.wait([_begin_add(gathering, 900)])
    large, small = (_begin_add(gathering, size) for size in (1500, 500))
    await asyncio.sleep(0)
    large.cancel()
    async with asyncio.timeout(30):
        last = await small
    assert large.cancelled()
    assert gathering.outstanding()[2:] == [last]


async def test_no_room_is_lost_when_one_is_cancelled_that_has_just_found_it() -> None:
    gathering = _gathering(max_messages=1)
    for size in (1, 2):
        await asyncio.wait([_begin_add(gathering, size)])
    gone, stays = (_begin_add(gathering, size) for size in (3, 4))
    await asyncio.sleep(0)
    gathering.answered()
    gone.cancel()  # before it knows
    await asyncio.wait([gone])
    assert gone.cancelled()
    assert len(gathering.outstanding()) == 1
    gathering.answered()
    assert [len(batch.messages[0].payload) for batch in gathering.unanswered] == [3]  # it may be put
    async with asyncio.timeout(30):
        assert gathering.outstanding() == [await stays]
    gathering.answered()
    gathering.answered()
    assert gathering.is_empty


async def test_each_message_has_its_own_error(queue: headway.Queue) -> None:
    await queue.put(b"theirs", id="known")
    async with queue.producer() as producer:
        told = await asyncio.gather(
            producer.put(b"1"), producer.put(b"2", id="known"), producer.put(b"3"), return_exceptions=True
        )
    assert [type(each) for each in told] == [PutResult, headway.DuplicateMessage, PutResult]


async def test_closed_and_missing_queues_are_told_and_the_stream_goes_on(
    client: headway.Client, queue: headway.Queue
) -> None:
    async with client.queue("nobody").producer() as producer:
        assert isinstance(await failure_of(producer.put(b"x")), headway.QueueNotFound)
        await client.queue("nobody").create()
        await producer.put(b"x")
    await queue.close()
    async with queue.producer() as producer:
        assert isinstance(await failure_of(producer.put(b"x")), headway.QueueClosed)


async def test_refused_message_does_not_take_others_with_it(queue: headway.Queue, made: FakeQueue) -> None:
    async with queue.producer() as producer:
        told = await asyncio.gather(
            *(producer.put(b"%d" % n, id="~mine" if n == 5 else "") for n in range(9)), return_exceptions=True
        )
        assert isinstance(told.pop(5), headway.FieldInvalid)
        await producer.put(b"9")
    assert [held.message.payload for held in made.line] == [b"%d" % n for n in range(10) if n != 5]


async def test_message_that_grpc_itself_refuses_does_not_take_others_with_it(
    queue: headway.Queue, made: FakeQueue
) -> None:
    async with queue.producer(patience=timedelta(seconds=1)) as producer:
        payloads = [b"1", b"x" * 5 * 1024 * 1024, b"2"]
        told = await asyncio.gather(*map(producer.put, payloads), return_exceptions=True)
        assert isinstance(told[1], headway.TooLarge)
    assert [held.message.payload for held in made.line] == [b"1", b"2"]


async def test_message_larger_than_any_request_is_refused_without_being_sent(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    async with queue.producer() as producer:
        error = await failure_of(producer.put(b"x" * (service.limits.max_request_bytes + 1)))
        assert isinstance(error, headway.TooLarge)
        assert set(error.metadata) == {"field", "limit", "size"}
        await producer.put(b"1")
    assert sizes(service) == [1]


@pytest.mark.parametrize("makes_ids", [True, False])
async def test_batch_that_grpc_itself_refuses_out_of_turn_says_nothing_of_those_before_it(
    service: FakeService, queue: headway.Queue, made: FakeQueue, makes_ids: bool
) -> None:
    service.limits.max_request_bytes = 64 * 1024 * 1024  # so the producer cannot know
    service.swallows_answers = True
    async with queue.producer(makes_ids=makes_ids, max_batch=1) as producer:
        first = await producer.put_soon(b"1")
        await service.wait_for(lambda: made.line)
        gate = service.hold_next("Produce")
        second = await producer.put_soon(b"x" * 5 * 1024 * 1024)
        if makes_ids:
            await service.wait_for(lambda: len(service.requests("Produce")) == 2)  # the first one again
        else:  # nobody can know
            assert (await failure_of(first)).is_outcome_unknown
            assert (await failure_of(second)).is_outcome_unknown
        service.swallows_answers = False
        gate.set()
        if makes_ids:
            assert (await results([first]))[0].deduplicated
            assert isinstance(await failure_of(second), headway.TooLarge)
        await results([await producer.put_soon(b"2")])
    assert [held.message.payload for held in made.line] == [b"1", b"2"]


@pytest.mark.parametrize("failure", [AWAY, CUT, LOST], ids=["away", "cut", "unknown"])
async def test_broken_stream_loses_nothing_and_puts_nothing_twice(
    service: FakeService, queue: headway.Queue, made: FakeQueue, failure: Failure
) -> None:
    service.failures["Produce"] = [None, failure, None, failure, failure]
    async with queue.producer(max_batch=3, linger=LONG) as producer:
        told = await asyncio.gather(*(producer.put(b"%d" % n) for n in range(30)))
    assert [held.message.payload for held in made.line] == [b"%d" % n for n in range(30)]
    assert len({each.id for each in told}) == 30


async def test_lost_answers_behind_the_first_are_asked_for_again_too(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    """A connection that breaks may swallow the answers to several batches."""
    service.failures["Produce"] = [None, None, CUT]
    service.swallows_answers = True
    async with queue.producer(max_batch=1, linger=LONG) as producer:
        answers = [await producer.put_soon(b"%d" % n) for n in range(4)]
        await service.wait_for(lambda: len(made.line) == 3)
        service.swallows_answers = False
        told = await results(answers)
    assert [held.message.payload for held in made.line] == [b"0", b"1", b"2", b"3"]
    assert [each.deduplicated for each in told] == [True, True, True, False]


async def test_repeat_is_refused_if_another_message_has_the_id(service: FakeService, queue: headway.Queue) -> None:
    await queue.put(b"theirs", id="a")
    service.fail_next("Produce", Failure(code=grpc.StatusCode.UNAVAILABLE))
    async with queue.producer() as producer:
        assert isinstance(await failure_of(producer.put(b"mine", id="a")), headway.DuplicateMessage)


async def test_message_without_id_is_not_put_again_if_that_is_not_wanted(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    async with queue.producer(makes_ids=False) as producer:
        service.fail_next("Produce", LOST)
        told = await asyncio.gather(producer.put(b"1"), producer.put(b"2", id="b"), return_exceptions=True)
        assert isinstance(told[0], headway.OutcomeUnknown)
        assert isinstance(told[1], PutResult)
        assert told[1].deduplicated
        service.fail_next("Produce", AWAY)
        await producer.put(b"3")
    assert [held.message.payload for held in made.line] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("ids", [["a", ""], ["a", "", "b"], ["", "a", ""]], ids=str)
async def test_batch_in_doubt_of_which_nothing_may_be_put_again_is_not_sent_again(
    service: FakeService, queue: headway.Queue, made: FakeQueue, ids: list[str]
) -> None:
    service.failures["Produce"] = [*(None for _ in ids[1:]), CUT]
    service.swallows_answers = True
    async with asyncio.timeout(30), queue.producer(makes_ids=False, max_batch=1, linger=LONG) as producer:
        answers = [await producer.put_soon(b"x", id=each) for each in ids]
        await service.wait_for(lambda: len(made.line) == len(ids))
        service.swallows_answers = False
        told = await asyncio.gather(*answers, return_exceptions=True)
    assert [isinstance(each, PutResult) and each.deduplicated for each in told] == [bool(each) for each in ids]
    assert all(isinstance(each, PutResult) or getattr(each, "is_outcome_unknown", False) for each in told)
    assert sizes(service) == [1] * (len(ids) + sum(map(bool, ids)))


async def test_what_waits_fails_when_the_service_is_away_for_longer_than_the_patience(
    service: FakeService, queue: headway.Queue
) -> None:
    async with queue.producer(patience=timedelta(milliseconds=300)) as producer:
        service.fail_next("Produce", AWAY, times=50)
        told = await asyncio.gather(producer.put(b"1"), producer.put(b"2"), return_exceptions=True)
        assert [type(each) for each in told] == [headway.ShuttingDown] * 2
        service.failures.clear()
        await producer.put(b"3")


async def test_no_patience_is_none(service: FakeService, queue: headway.Queue) -> None:
    async with queue.producer(patience=timedelta(0)) as producer:
        service.failures["Produce"] = [AWAY]
        with pytest.raises(headway.ShuttingDown):
            await producer.put(b"1")


@pytest.mark.parametrize(
    "behind",
    [
        [Failure(code=grpc.StatusCode.UNAVAILABLE, reason="STORE_UNAVAILABLE")] * 50,
        [Failure(code=grpc.StatusCode.PERMISSION_DENIED, reason="PERMISSION_DENIED")],
    ],
    ids=["away for longer than the patience", "refused for good"],
)
async def test_what_may_have_been_put_fails_as_unknown_whatever_is_said_later(
    service: FakeService, queue: headway.Queue, made: FakeQueue, behind: list[Failure]
) -> None:
    service.failures["Produce"] = [LOST, *behind]
    gate = service.hold_next("Produce")
    patience = timedelta(milliseconds=300)
    async with queue.producer(max_batch=1, max_in_flight=1, linger=LONG, patience=patience) as producer:
        first = await producer.put_soon(b"1")
        await service.wait_for(lambda: made.line)
        second = await producer.put_soon(b"2")  # not sent: the first is on the way
        gate.set()
        in_doubt, not_put = await failure_of(first), await failure_of(second)
    assert isinstance(in_doubt, headway.OutcomeUnknown)
    assert not_put.reason_name == behind[-1].reason
    assert [held.message.payload for held in made.line] == [b"1"]


async def test_closed_queue_does_not_hide_what_an_earlier_try_may_have_put(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    gate = service.hold_next("Produce")
    service.fail_next("Produce", LOST)
    async with queue.producer() as producer:
        first = await producer.put_soon(b"1")
        await service.wait_for(lambda: made.line)
        made.closed = True
        gate.set()
        assert isinstance(await failure_of(first), headway.OutcomeUnknown)
        assert isinstance(await failure_of(producer.put(b"2")), headway.QueueClosed)
    assert [held.message.payload for held in made.line] == [b"1"]


async def test_lasting_refusal_of_the_stream_fails_what_waits(service: FakeService, queue: headway.Queue) -> None:
    async with queue.producer() as producer:
        service.fail_next("Produce", Failure(code=grpc.StatusCode.PERMISSION_DENIED, reason="PERMISSION_DENIED"))
        assert isinstance(await failure_of(producer.put(b"1")), headway.PermissionDenied)


async def test_idle_producer_lives_through_a_broken_stream(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    async with queue.producer() as producer:
        await producer.put(b"1")
        await service.break_streams()
        await producer.put(b"2")
    assert [held.message.payload for held in made.line] == [b"1", b"2"]


async def test_end_of_the_block_flushes_also_if_it_raises(queue: headway.Queue, made: FakeQueue) -> None:
    producer = queue.producer(linger=LONG)

    async def put_and_raise() -> None:
        async with producer:
            answers.extend([await producer.put_soon(b"%d" % n) for n in range(5)])
            raise ValueError("mine")

    answers: list[asyncio.Future[PutResult]] = []
    with pytest.raises(ValueError, match="mine"):
        await put_and_raise()
    assert [answer.result().position for answer in answers] == [1, 2, 3, 4, 5]
    assert len(made.line) == 5
    with pytest.raises(RuntimeError, match="closed"):
        await producer.put(b"x")
    assert not client_tasks()


async def test_cancelled_block_waits_for_nothing(service: FakeService, queue: headway.Queue, made: FakeQueue) -> None:
    made.policy.bound = 1
    answers: list[asyncio.Future[PutResult]] = []

    async def put_many() -> None:
        async with queue.producer() as producer:
            answers.extend([await producer.put_soon(b"x") for _ in range(3)])
            await asyncio.Event().wait()

    task = asyncio.create_task(put_many())
    await service.wait_for(lambda: made.line)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(answer.cancelled() for answer in answers)
    assert not client_tasks()


async def test_closed_client_fails_what_waits(service: FakeService, made: FakeQueue) -> None:
    made.policy.bound = 1
    async with headway.connect(service.address) as client, client.queue("q").producer() as producer:
        answers = [await producer.put_soon(b"x") for _ in range(3)]
        await service.wait_for(lambda: made.line)
        await client.close()
        assert (await failure_of(answers[0])).code is grpc.StatusCode.CANCELLED


@pytest.mark.parametrize("wrong", [{"max_batch": 0}, {"max_bytes": 0}, {"max_in_flight": 0}])
def test_bounds_below_one_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        headway.connect().queue("q").producer(**wrong)  # type: ignore[arg-type]
