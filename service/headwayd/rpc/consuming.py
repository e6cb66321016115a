"""Consume: from the steps of a consumer to orders, checked in full, and from what the engine tells to replies."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import NoReturn

from headway.v1 import queue_service_pb2
from headwayd.domain.consuming import AckOrder, ConsumeOrder, ConsumeStep, Credit, ExtendOrder
from headwayd.domain.errors import HeadwayError, Violation
from headwayd.domain.limits import MAX_CREDIT_MESSAGES, MAX_ROLE_NAME_BYTES, MIN_LEASE_MS, Limits
from headwayd.rpc import requests
from headwayd.rpc.conversion import consume_response
from headwayd.rpc.deadlines import store_budget_s
from headwayd.rpc.edge import Context
from headwayd.rpc.encoded import Reply
from headwayd.rpc.engine_port import Engine
from headwayd.rpc.validation import Checks


async def consume(
    engine: Engine, asked: AsyncIterator[queue_service_pb2.ConsumeRequest], context: Context
) -> AsyncGenerator[Reply, None]:
    """Streams what is leased and what became of it."""
    first = await anext(asked, queue_service_pb2.ConsumeRequest())
    if not first.HasField("start"):
        _refuse("start", "must be the first step", engine.limits)
    engine.check_name(first.start.queue)
    order = start_order(first.start, engine.limits)
    del first  # as each step below: however large, it would be there as long as nothing follows it
    steps = _steps(asked, order.queue, engine.limits)
    async with aclosing(engine.consume(order, steps, budget_s=store_budget_s(context))) as stream:
        async for told in stream:
            yield consume_response(told)


async def _steps(
    asked: AsyncIterator[queue_service_pb2.ConsumeRequest], queue: str, limits: Limits
) -> AsyncGenerator[ConsumeStep, None]:
    async for request in asked:
        step = step_of(request, queue, limits)
        del request
        yield step


def start_order(start: queue_service_pb2.ConsumeStart, limits: Limits) -> ConsumeOrder:
    """How a stream wants to begin."""
    checks = Checks(limits)
    order = ConsumeOrder(
        queue=start.queue,
        consumer=checks.text("start.consumer", start.consumer, max_bytes=MAX_ROLE_NAME_BYTES),
        lease_ms=checks.span_ms(
            start, "lease", "start.lease", lowest_ms=MIN_LEASE_MS, highest_ms=limits.max_lease_ms, default_ms=0
        ),
        credit=_credit("start.credit", start.credit, checks),
    )
    checks.finish()
    return order


def step_of(request: queue_service_pb2.ConsumeRequest, queue: str, limits: Limits) -> ConsumeStep:
    """What one request behind the start asks for."""
    step = request.WhichOneof("step")
    try:
        match step:
            case "credit":
                checks = Checks(limits)
                credit = _credit("", request.credit, checks)
                checks.finish()
                return credit
            case "ack":
                _check_queue(request.ack.queue, queue, limits)
                return AckOrder(requests.acked_leases(request.ack, limits), request.ack.result)
            case "delay":
                _check_queue(request.delay.queue, queue, limits)
                return replace(requests.delay_order(request.delay, limits), queue=queue, until_field="delay.until")
            case "extend":
                _check_queue(request.extend.queue, queue, limits)
                return ExtendOrder(*requests.extension(request.extend, limits))
    except HeadwayError as error:
        raise _within(str(step), error) from error
    return _refuse("start" if step else "step", "was said before" if step else "is missing", limits)


def _credit(path: str, credit: queue_service_pb2.Credit, checks: Checks) -> Credit:
    field = f"{path}.messages".lstrip(".")
    return Credit(
        messages=checks.count(field, credit.messages, highest=MAX_CREDIT_MESSAGES, default=0), bytes=credit.bytes
    )


def _check_queue(named: str, queue: str, limits: Limits) -> None:
    if named not in ("", queue):
        _refuse("queue", "is not the queue of this stream", limits)


def _refuse(field: str, description: str, limits: Limits) -> NoReturn:
    checks = Checks(limits)
    checks.invalid(field, description)
    checks.finish()
    raise AssertionError("a violation was noted")


def _within(step: str, error: HeadwayError) -> HeadwayError:
    """The same, with paths that lead through the step."""
    metadata = error.metadata | {"field": f"{step}.{error.metadata.get('field', '')}"}
    violations = [Violation(f"{step}.{one.field}", one.description) for one in error.violations]
    return type(error)(f"{step}.{error.text}", metadata=metadata, violations=violations)
