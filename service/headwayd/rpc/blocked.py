"""WatchPosition for blocked producers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial

from headway.v1 import queue_service_pb2
from headwayd.domain.blocked import ToldBlocked, ToldProducer
from headwayd.domain.limits import MAX_ROLE_NAME_BYTES, Limits
from headwayd.domain.standing import ToldOver
from headwayd.rpc.deadlines import store_budget_s
from headwayd.rpc.edge import Context
from headwayd.rpc.engine_port import Engine
from headwayd.rpc.hint_conversion import set_eta, set_hints
from headwayd.rpc.spans import set_timestamp
from headwayd.rpc.validation import Checks
from headwayd.rpc.watch_conversion import numbered, set_over


def producer_of(request: queue_service_pb2.WatchPositionRequest, limits: Limits) -> str:
    """The producer to watch: any name that a Put can give."""
    checks = Checks(limits)
    producer = checks.text("blocked.producer", request.blocked.producer, max_bytes=MAX_ROLE_NAME_BYTES)
    if not producer:
        checks.invalid("blocked.producer", "is empty")
    checks.finish()
    return producer


def watch_blocked(
    engine: Engine, request: queue_service_pb2.WatchPositionRequest, context: Context
) -> AsyncGenerator[queue_service_pb2.WatchPositionResponse, None]:
    """Streams where a producer stands in the producer line."""
    engine.check_name(request.queue)
    producer = producer_of(request, engine.limits)
    places = engine.watch_blocked(request.queue, producer, budget_s=store_budget_s(context))
    return numbered(places, partial(_response, producer))


def _response(producer: str, told: ToldProducer, sequence: int) -> queue_service_pb2.WatchPositionResponse:
    response = queue_service_pb2.WatchPositionResponse(sequence=sequence)
    match told:
        case ToldBlocked():
            set_timestamp(response.as_of, told.at_ms)
            position = response.position
            position.producer = producer
            position.position = told.position
            position.length = told.length
            position.limit = told.limit
            if told.position:
                position.state = queue_service_pb2.STATE_WAITING
            set_hints(position, told.hints)
            set_eta(position.eta, None)
        case ToldOver():
            set_over(response, told)
    return response
