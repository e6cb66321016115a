"""What a stream that produces makes of the engine's answers, step by step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import pytest
import structlog.testing

from headway.v1.message_pb2 import Message
from headway.v1.queue_service_pb2 import ProduceRequest, ProduceResponse
from headwayd.domain.errors import (
    HeadwayError,
    InternalError,
    OutcomeUnknown,
    QueueFull,
    QuotaExceeded,
    StoreUnavailable,
)
from headwayd.domain.limits import Limits
from headwayd.domain.model import PutCode, PutOrder, PutOutcome
from headwayd.rpc.encoded import Reply, is_followed, to_bytes
from headwayd.rpc.incidents import as_told
from headwayd.rpc.producing import produce

FULL = QueueFull("queue 'q' is full", metadata={"queue": "q"})


class Context:
    """A call without a deadline, or with so much time left."""

    def __init__(self, left_s: float | None = None) -> None:
        self._left_s = left_s

    def time_remaining(self) -> float | None:
        return self._left_s


class Engine:
    """Accepts so much of each step as it is told to, or fails; a step begins when it may."""

    def __init__(self, *steps: int | HeadwayError) -> None:
        self.limits = Limits()
        self.orders: list[PutOrder] = []
        self.is_asked, self.may_go_on = asyncio.Event(), asyncio.Event()
        self._steps = list(steps)

    def check_name(self, name: str) -> None:
        assert name == "q"

    async def put_each(self, order: PutOrder, *, budget_s: float) -> Sequence[PutOutcome]:
        assert budget_s > 0
        self.orders.append(order)
        self.is_asked.set()
        await self.may_go_on.wait()
        step = self._steps.pop(0)
        if isinstance(step, HeadwayError):
            raise step
        accepted = [PutOutcome(PutCode.QUEUED, "~x-1", 1, 1) for _ in order.messages[:step]]
        return accepted + [PutOutcome(PutCode.REFUSED, "", error=FULL) for _ in order.messages[step:]]


async def played(engine: Engine, *sizes: int, left_s: float | None = None) -> tuple[list[Reply], HeadwayError | None]:
    """What is answered to batches of these sizes, which all come while the first is under way, and the end."""

    async def asked() -> AsyncIterator[ProduceRequest]:
        for number, size in enumerate(sizes, start=1):
            yield ProduceRequest(queue="q", batch=number, messages=[Message(payload=b"x")] * size)
            await engine.is_asked.wait()
        engine.may_go_on.set()

    answers: list[Reply] = []
    context: Any = Context(left_s)
    try:
        async for answer in produce(engine, asked(), context):  # type: ignore[arg-type]
            answers.append(answer)  # noqa: PERF401 - what came before an error counts
    except HeadwayError as error:
        return answers, error
    return answers, None


def told(answers: Sequence[Reply]) -> list[tuple[int, list[bool]]]:
    """Batch by batch, which messages were accepted."""
    messages = [ProduceResponse.FromString(to_bytes(answer)) for answer in answers]
    return [(one.batch, [not result.HasField("error") for result in one.results]) for one in messages]


async def test_what_comes_while_the_first_is_under_way_goes_in_one_step_that_does_not_wait() -> None:
    engine = Engine(1, 4)
    answers, end = await played(engine, 1, 2, 2)
    assert told(answers) == [(1, [True]), (2, [True, True]), (3, [True, True])]
    assert end is None
    assert [(len(order.messages), order.wait_ms > 0) for order in engine.orders] == [(1, True), (4, False)]


@pytest.mark.parametrize(
    ("engine", "sizes", "followed"),
    [
        (Engine(1), [1], [False]),
        (Engine(1, 6), [1, 2, 2, 2], [True, True, True, False]),
        (Engine(1, 1, StoreUnavailable("away")), [1, 2, 2], [True, False]),
        (Engine(OutcomeUnknown("lost")), [1, 2], []),
    ],
)
async def test_answers_that_are_there_at_one_time_leave_together_and_none_is_held_back(
    engine: Engine, sizes: list[int], followed: list[bool]
) -> None:
    answers, _ = await played(engine, *sizes)
    assert [is_followed(answer) for answer in answers] == followed


async def test_what_found_no_room_waits_batch_by_batch_behind_what_was_accepted_of_it() -> None:
    engine = Engine(1, 3, 1, 2)
    answers, end = await played(engine, 1, 2, 2, 2)
    assert told(answers) == [(1, [True]), (2, [True, True]), (3, [True, True]), (4, [True, True])]
    assert end is None
    assert [(len(order.messages), order.wait_ms > 0) for order in engine.orders[2:]] == [(1, True), (2, True)]


@pytest.mark.parametrize(("left_s", "waits"), [(None, True), (0.05, False)])
async def test_only_what_goes_together_comes_again_also_when_there_is_no_time_to_wait(
    left_s: float | None, *, waits: bool
) -> None:
    engine = Engine(1, 0, 0, 0)
    answers, _ = await played(engine, 1, 1, 1, left_s=left_s)
    assert told(answers) == [(1, [True]), (2, [False]), (3, [False])]
    tries = [(order.wait_ms > 0, order.comes_again) for order in engine.orders]
    assert tries == [(waits, False), (False, True), (waits, False), (waits, False)]


@pytest.mark.parametrize("error", [StoreUnavailable("away"), OutcomeUnknown("lost")])
async def test_trouble_with_the_rest_of_a_batch_is_told_behind_what_was_accepted_of_it(error: HeadwayError) -> None:
    engine = Engine(1, 1, error)
    answers, end = await played(engine, 1, 2, 2)
    assert told(answers) == [(1, [True]), (2, [True, False])]
    assert end is error


@pytest.mark.parametrize("error", [StoreUnavailable("away"), OutcomeUnknown("lost")])
async def test_trouble_with_a_step_of_several_batches_answers_none_of_them(error: HeadwayError) -> None:
    answers, end = await played(Engine(1, error), 1, 2, 2)
    assert told(answers) == [(1, [True])]
    assert end is error


async def test_what_a_quota_has_no_room_for_together_is_put_batch_by_batch_up_to_the_first_that_exceeds_it() -> None:
    exceeded = QuotaExceeded("used up", metadata={"quota": "messages"})
    engine = Engine(1, exceeded, 2, exceeded)
    answers, end = await played(engine, 1, 2, 2, 2)
    assert told(answers) == [(1, [True]), (2, [True, True])]
    assert end is exceeded
    assert [len(order.messages) for order in engine.orders] == [1, 6, 2, 2]


async def test_no_step_has_more_messages_than_the_store_is_asked_for_at_once() -> None:
    engine = Engine(1, 1_000, 400)
    answers, _ = await played(engine, 1, 600, 400, 400)
    assert [len(results) for _, results in told(answers)] == [1, 600, 400, 400]
    assert [len(order.messages) for order in engine.orders] == [1, 1_000, 400]


async def test_no_more_is_read_ahead_than_a_few_batches() -> None:
    engine = Engine(*[1] * 40)
    read = 0

    async def asked() -> AsyncIterator[ProduceRequest]:
        nonlocal read
        for _ in range(40):
            read += 1
            yield ProduceRequest(queue="q", messages=[Message(payload=b"x")])
            await engine.is_asked.wait()

    context: Any = Context()
    stream = produce(engine, asked(), context)  # type: ignore[arg-type]
    first = asyncio.ensure_future(anext(stream))
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert read == 17  # the first, and 16 behind it
    engine.may_go_on.set()
    await first
    await stream.aclose()
    assert engine.orders[0]._replace(messages=()) == PutOrder(queue="q", messages=(), wait_ms=engine.orders[0].wait_ms)


@pytest.mark.parametrize(("size", "first", "most"), [(1, 16, 16), (1024 * 1024, 2, 2)])
async def test_no_more_is_read_behind_a_step_of_which_a_part_waits_for_room(size: int, first: int, most: int) -> None:
    """Than behind one batch: so many batches, or so many bytes and one batch."""
    engine = Engine(1, 1)
    read = 0

    async def asked() -> AsyncIterator[ProduceRequest]:
        nonlocal read
        for _ in range(100):
            read += 1
            yield ProduceRequest(queue="q", messages=[Message(payload=b"x" * size)])
            await engine.is_asked.wait()

    async def waits(order: PutOrder, *, budget_s: float) -> Sequence[PutOutcome]:
        if len(engine.orders) == 2:
            await asyncio.Event().wait()
        return await Engine.put_each(engine, order, budget_s=budget_s)

    engine.put_each = waits  # type: ignore[method-assign]
    context: Any = Context()
    stream = produce(engine, asked(), context)  # type: ignore[arg-type]
    answer = asyncio.ensure_future(anext(stream))
    for _ in range(1_000):
        await asyncio.sleep(0)
    engine.may_go_on.set()
    await answer
    await anext(stream)
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert [len(order.messages) for order in engine.orders] == [1, first]
    assert read == 1 + first + most
    await stream.aclose()


async def test_a_defect_is_one_incident_where_it_befell_the_rest_of_a_batch_and_where_it_ends_the_stream() -> None:
    engine = Engine(1, 1, InternalError("the store answered SECRET"))
    with structlog.testing.capture_logs() as logged:
        answers, end = await played(engine, 1, 2, 2)
        assert end is not None
        at_the_end = as_told(end, "Produce")
    accepted, refused = ProduceResponse.FromString(to_bytes(answers[-1])).results
    assert not accepted.HasField("error")
    assert dict(refused.error.metadata) == at_the_end.metadata
    assert "SECRET" not in refused.error.message
    assert [line["incident"] for line in logged] == [at_the_end.metadata["incident"]]


async def unanswered(engine: Engine, count: int) -> tuple[AsyncGenerator[Reply, None], Reply]:
    """A stream of so many batches of one message, and the first answer; nobody takes the next."""

    async def asked() -> AsyncIterator[ProduceRequest]:
        for number in range(1, count + 1):
            yield ProduceRequest(queue="q", batch=number, messages=[Message(payload=b"x")])

    engine.may_go_on.set()
    context: Any = Context()
    stream = produce(engine, asked(), context)  # type: ignore[arg-type]
    first = await anext(stream)
    for _ in range(1_000):
        await asyncio.sleep(0)
    return stream, first


async def test_a_step_does_not_wait_until_what_is_put_is_answered_but_a_few_batches_are_the_most() -> None:
    engine = Engine(*[100] * 100)
    stream, first = await unanswered(engine, 100)
    put = sum(len(order.messages) for order in engine.orders)
    assert 16 <= put <= 3 * 16
    answers = [first, *[answer async for answer in stream]]
    assert told(answers) == [(number, [True]) for number in range(1, 101)]
    assert sum(len(order.messages) for order in engine.orders) == 100


async def test_no_later_batch_is_put_behind_trouble_though_nobody_takes_the_answers() -> None:
    engine = Engine(1, StoreUnavailable("away"), *[100] * 100)
    stream, first = await unanswered(engine, 40)
    assert len(engine.orders) == 2
    with pytest.raises(StoreUnavailable):
        await anext(stream)
    assert told([first]) == [(1, [True])]


async def test_a_caller_who_goes_ends_the_step_that_is_under_way() -> None:
    engine, is_ended = Engine(), asyncio.Event()

    async def never_ends(order: PutOrder, *, budget_s: float) -> Sequence[PutOutcome]:
        assert (order.queue, budget_s > 0) == ("q", True)
        engine.is_asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            is_ended.set()
        return ()

    engine.put_each = never_ends  # type: ignore[method-assign]
    answering = asyncio.ensure_future(unanswered(engine, 2))
    await engine.is_asked.wait()
    answering.cancel()
    async with asyncio.timeout(5):
        await is_ended.wait()
