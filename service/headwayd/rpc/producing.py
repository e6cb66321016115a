"""Produce: batches on one stream, put and answered in order. What came while the store was busy with those before goes
there in one step, as far as there is room for it at once; what must wait for room does so batch by batch.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass

from headway.v1 import queue_service_pb2
from headwayd.domain.bare import all_bytes, all_of, is_for_now
from headwayd.domain.errors import HeadwayError, QuotaExceeded, Reason
from headwayd.domain.joined import errors_of
from headwayd.domain.limits import DAY_MS
from headwayd.domain.model import NO_ROOM, PutOrder, PutOutcome, refused
from headwayd.engine.read_ahead import ReadAhead
from headwayd.rpc import requests
from headwayd.rpc.conversion import produce_response
from headwayd.rpc.cutting import cut_off_of_this_call
from headwayd.rpc.deadlines import store_budget_s, wait_within_deadline_ms
from headwayd.rpc.edge import Context
from headwayd.rpc.encoded import Reply, followed
from headwayd.rpc.engine_port import Engine

# A batch waits for room as long as its stream lasts; this is longer than any does.
_WAIT_MS = 366 * DAY_MS
# What is the matter with one queue or one message, and no reason to end a stream that may go on with others. Whatever
# else befalls a batch ends the stream: were the next one put all the same, it would stand before this one made again.
_OF_ONE_BATCH = frozenset(
    {
        Reason.QUEUE_NOT_FOUND,
        Reason.QUEUE_CLOSED,
        Reason.QUEUE_DELETED,
        Reason.QUEUE_FULL,
        Reason.DUPLICATE_MESSAGE,
        Reason.ROLE_IN_USE,
    }
)
_MOST_TOGETHER = 1_000  # messages of several batches in one step
# Batches read behind a step, which has no more than so many, too; then the producer is held back. Those of the step do
# not count: else nothing would be read while the store works on it, and the next could only begin later.
_MOST_UNDONE, _MOST_UNDONE_BYTES = 16, 2 * 1024 * 1024
_MOST_UNSENT = 16  # batches that are put, and wait to be answered; then no further are put


@dataclass(frozen=True, slots=True)
class _Batch:
    number: int
    order: PutOrder
    size: int  # bytes of its messages; to ask the request for its own is to have it written

    @property
    def is_harmless(self) -> bool:
        """Nothing in it can be a reason to refuse others."""
        return is_for_now(self.order.messages)

    def may_go_with(self, other: _Batch) -> bool:
        """In one step with the batch before."""
        is_alike = self.order._replace(messages=()) == other.order._replace(messages=())
        return is_alike and self.is_harmless and other.is_harmless


async def produce(
    engine: Engine, asked: AsyncIterator[queue_service_pb2.ProduceRequest], context: Context
) -> AsyncGenerator[Reply, None]:
    """Answers every batch in order. Ends when the requests do, or with the error that no later batch may pass.

    Answers that are there at one time leave together: to send one by itself costs more than to make it.
    """
    batches = ReadAhead(_batches(engine, asked), most=_MOST_UNDONE, most_size=_MOST_UNDONE_BYTES, size=_size_of)
    answers = ReadAhead(_answers(engine, batches, context), most=_MOST_UNSENT)
    try:
        while (answer := await answers.next()) is not None:
            response = produce_response(*answer)
            yield response if answers.peek() is None else followed(response)
    finally:
        answers.close()
        batches.close()


async def _answers(
    engine: Engine, batches: ReadAhead[_Batch], context: Context
) -> AsyncGenerator[tuple[int, Sequence[PutOutcome]], None]:
    """Puts them, step by step, and tells of each by its number. A step does not wait until what is told is sent."""
    while (first := await batches.next()) is not None:
        together, count = [first], len(first.order.messages)
        while (behind := batches.peek()) is not None and behind.may_go_with(together[-1]):
            count += len(behind.order.messages)
            if count > _MOST_TOGETHER:
                break
            together.append(behind)
            batches.take()
        async with aclosing(_put_all(engine, together, context)) as done:
            async for batch, outcomes in done:
                yield batch.number, outcomes
                for error in errors_of(outcomes):
                    if error.reason not in _OF_ONE_BATCH:
                        raise error


def _size_of(batch: _Batch) -> int:
    return batch.size


async def _batches(
    engine: Engine, asked: AsyncIterator[queue_service_pb2.ProduceRequest]
) -> AsyncGenerator[_Batch, None]:
    queue = ""
    async for batch in asked:
        queue = batch.queue or queue
        engine.check_name(queue)
        order = requests.batch_order(batch, queue, engine.limits)
        yield _Batch(batch.batch, order, all_bytes(order.messages))


async def _put_all(
    engine: Engine, batches: Sequence[_Batch], context: Context
) -> AsyncGenerator[tuple[_Batch, Sequence[PutOutcome]], None]:
    """What befell each batch, as soon as that is known."""
    at_once: Sequence[PutOutcome] = ()
    if len(batches) > 1:
        messages = all_of([batch.order.messages for batch in batches])
        with suppress(QuotaExceeded):  # which has room for the first of them, perhaps
            order = batches[0].order._replace(messages=messages, comes_again=True)
            at_once = await _put(engine, order, context)
    at = 0
    for batch in batches:
        messages = batch.order.messages
        outcomes = _without_those_that_found_no_room(at_once[at : at + len(messages)])
        at += len(messages)
        if rest := messages[len(outcomes) :]:
            wait_ms = wait_within_deadline_ms(_WAIT_MS, context)
            order = batch.order._replace(messages=rest, wait_ms=wait_ms, cut_off=cut_off_of_this_call())
            try:
                others = await _put(engine, order, context)
                outcomes = [*outcomes, *others] if outcomes else others
            except HeadwayError as error:
                if not outcomes:
                    raise
                outcomes = [*outcomes, *refused(rest, error)]
        yield batch, outcomes


def _without_those_that_found_no_room(outcomes: Sequence[PutOutcome]) -> Sequence[PutOutcome]:
    """Of what befell a batch that did not wait: as far as nothing stood in the way but room."""
    end = len(outcomes)
    while end and (error := outcomes[end - 1].error) is not None and error.reason in NO_ROOM:
        end -= 1
    return outcomes[:end]


async def _put(engine: Engine, order: PutOrder, context: Context) -> Sequence[PutOutcome]:
    try:
        return await engine.put_each(order, budget_s=store_budget_s(context))
    except HeadwayError as error:
        if error.reason not in _OF_ONE_BATCH:
            raise
        return refused(order.messages, error)
