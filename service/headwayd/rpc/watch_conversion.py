"""From what those who watch are told to replies."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

from headway.v1 import queue_service_pb2
from headwayd.domain.standing import ToldOver
from headwayd.domain.watching import End, Told, ToldDelayed, ToldFinished, ToldLeased, ToldQueue, ToldWaiting
from headwayd.rpc.conversion import queue_message
from headwayd.rpc.hint_conversion import set_eta, set_hints
from headwayd.rpc.spans import set_timestamp, timestamp
from headwayd.rpc.text import clean_text

Something = TypeVar("Something")

_OUTCOMES = {
    End.DONE: queue_service_pb2.OUTCOME_DONE,
    End.DEAD: queue_service_pb2.OUTCOME_DEAD,
    End.WITHDRAWN: queue_service_pb2.OUTCOME_WITHDRAWN,
    End.EXPIRED: queue_service_pb2.OUTCOME_EXPIRED,
    End.DELETED: queue_service_pb2.OUTCOME_DELETED,
    End.TAKEN: queue_service_pb2.OUTCOME_UNSPECIFIED,
    End.UNKNOWN: queue_service_pb2.OUTCOME_UNSPECIFIED,
}


def position_response(told: Told, sequence: int) -> queue_service_pb2.WatchPositionResponse:
    """Something about one message."""
    response = queue_service_pb2.WatchPositionResponse(sequence=sequence)
    if told.at_ms is not None:
        set_timestamp(response.as_of, told.at_ms)
    match told:
        case ToldWaiting():
            place = response.position
            place.position = told.position
            place.moved_back = told.is_moved_back
            place.state = queue_service_pb2.STATE_WAITING
            _fill_place(place, told)
            set_eta(place.eta, told.eta)
        case ToldDelayed():
            response.position.state = queue_service_pb2.STATE_DELAYED
            set_timestamp(response.position.available_at, told.due_at_ms)
            _fill_place(response.position, told)
        case ToldLeased():
            response.leased.id = told.id
            response.leased.attempt = told.attempt
            if told.progress is not None:
                response.leased.progress.fraction = told.progress.fraction
                response.leased.progress.note = clean_text(told.progress.note)
        case ToldFinished():
            finished = response.finished
            finished.id = told.id
            finished.outcome = _OUTCOMES[told.end]
            finished.result = told.result
            finished.cause = clean_text(told.cause)
    return response


def watch_queue_response(told: ToldQueue) -> queue_service_pb2.WatchQueueResponse:
    """A queue's numbers."""
    response = queue_service_pb2.WatchQueueResponse(queue=queue_message(told.queue), as_of=timestamp(told.at_ms))
    set_eta(response.eta, told.eta)
    return response


def set_over(response: queue_service_pb2.WatchPositionResponse, told: ToldOver) -> None:
    """There will never be a place in this line again."""
    response.finished.outcome = (
        queue_service_pb2.OUTCOME_DELETED if told.is_deleted else queue_service_pb2.OUTCOME_DRAINED
    )


async def numbered(
    stream: AsyncGenerator[Something, None], answer: Callable[[Something, int], queue_service_pb2.WatchPositionResponse]
) -> AsyncGenerator[queue_service_pb2.WatchPositionResponse, None]:
    """All that is told, with its number in the stream."""
    sequence = 0
    async with aclosing(stream):
        async for told in stream:
            sequence += 1
            yield answer(told, sequence)


def _fill_place(place: queue_service_pb2.Position, told: ToldWaiting | ToldDelayed) -> None:
    place.id = told.id
    place.length = told.length
    place.limit = told.limit
    set_hints(place, told.hints)
