"""WatchPosition for those who stand in the consumer line."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from headway.v1 import queue_service_pb2
from headwayd.domain.limits import MAX_ROLE_NAME_BYTES, MIN_LEASE_MS, Limits
from headwayd.domain.standing import StandOrder, ToldOver, ToldPlace, ToldStander, ToldTurn
from headwayd.rpc import requests
from headwayd.rpc.conversion import add_deliveries
from headwayd.rpc.deadlines import store_budget_s
from headwayd.rpc.edge import Context
from headwayd.rpc.engine_port import Engine
from headwayd.rpc.hint_conversion import set_eta, set_hints
from headwayd.rpc.spans import set_timestamp
from headwayd.rpc.validation import Checks
from headwayd.rpc.watch_conversion import numbered, set_over


def stand_order(request: queue_service_pb2.WatchPositionRequest, limits: Limits) -> StandOrder:
    """How a stream wants to stand."""
    checks = Checks(limits)
    stand = request.stand
    order = StandOrder(
        queue=request.queue,
        consumer=checks.text("stand.consumer", stand.consumer, max_bytes=MAX_ROLE_NAME_BYTES),
        place=requests.place(stand.place, "stand.place", checks),
        lease_ms=checks.span_ms(
            stand, "lease", "stand.lease", lowest_ms=MIN_LEASE_MS, highest_ms=limits.max_lease_ms, default_ms=0
        ),
        max_messages=checks.count(
            "stand.max_messages", stand.max_messages, highest=limits.max_batch_messages, default=1
        ),
        keeps_standing=stand.keep_standing,
    )
    checks.finish()
    return order


def stand(
    engine: Engine, request: queue_service_pb2.WatchPositionRequest, context: Context
) -> AsyncGenerator[queue_service_pb2.WatchPositionResponse, None]:
    """Streams a place in the consumer line, and what its turns bring."""
    engine.check_name(request.queue)
    order = stand_order(request, engine.limits)
    return numbered(engine.stand(order, budget_s=store_budget_s(context)), _response)


def _response(told: ToldStander, sequence: int) -> queue_service_pb2.WatchPositionResponse:
    response = queue_service_pb2.WatchPositionResponse(sequence=sequence)
    match told:
        case ToldPlace():
            set_timestamp(response.as_of, told.at_ms)
            position = response.position
            position.place = told.standing.place
            position.position = told.standing.position
            position.length = told.standing.length
            position.limit = told.standing.limit
            position.moved_back = told.is_moved_back
            position.state = queue_service_pb2.STATE_WAITING
            set_hints(position, told.standing.hints)
            set_eta(position.eta, told.standing.eta)
        case ToldTurn():
            set_timestamp(response.as_of, told.at_ms)
            add_deliveries(response.granted, told.deliveries)
        case ToldOver():
            set_over(response, told)
    return response
