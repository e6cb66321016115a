"""Produce: batches on one stream, each put and answered before the next one is read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace

from headway.v1 import queue_service_pb2
from headwayd.domain.errors import HeadwayError, Reason
from headwayd.domain.limits import DAY_MS
from headwayd.domain.model import PutCode, PutOrder, PutOutcome
from headwayd.rpc import requests
from headwayd.rpc.conversion import produce_response
from headwayd.rpc.deadlines import store_budget_s, wait_within_deadline_ms
from headwayd.rpc.edge import Context
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


async def produce(
    engine: Engine, batches: AsyncIterator[queue_service_pb2.ProduceRequest], context: Context
) -> AsyncGenerator[queue_service_pb2.ProduceResponse, None]:
    """Answers every batch in order. Ends when the requests do, or with the error that no later batch may pass."""
    queue = ""
    async for batch in batches:
        queue = batch.queue or queue
        engine.check_name(queue)
        order = requests.batch_order(batch, queue, engine.limits)
        order = replace(order, wait_ms=wait_within_deadline_ms(_WAIT_MS, context))
        outcomes = await _put(engine, order, context)
        yield produce_response(batch.batch, outcomes)
        for outcome in outcomes:
            if outcome.error is not None and outcome.error.reason not in _OF_ONE_BATCH:
                raise outcome.error


async def _put(engine: Engine, order: PutOrder, context: Context) -> Sequence[PutOutcome]:
    try:
        return await engine.put_each(order, budget_s=store_budget_s(context))
    except HeadwayError as error:
        if error.reason not in _OF_ONE_BATCH:
            raise
        return [PutOutcome(PutCode.REFUSED, message.id, error=error) for message in order.messages]
