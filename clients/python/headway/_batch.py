"""Puts messages: makes them, splits many into batches that the service accepts, and says what repeating may change."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Literal

import grpc

from headway._spans import available
from headway.core.connecting import Connection, span
from headway.core.error import HeadwayError, from_status
from headway.core.errors import AlreadyExists
from headway.v1.admin_service_pb2 import Limits
from headway.v1.error_reason_pb2 import ErrorReason
from headway.v1.message_pb2 import Message, OnDuplicate, PutResult, Status
from headway.v1.queue_service_pb2 import PutRequest, PutResponse

OnDuplicateName = Literal["reject", "keep", "replace"]

_ON_DUPLICATE: dict[str, OnDuplicate.ValueType] = {
    "reject": OnDuplicate.ON_DUPLICATE_REJECT,
    "keep": OnDuplicate.ON_DUPLICATE_KEEP,
    "replace": OnDuplicate.ON_DUPLICATE_REPLACE,
}
_BYTES = (bytes, bytearray, memoryview)
FRAMING_BYTES = 6  # tag and length of one message in a request
ENVELOPE_BYTES = 1024  # queue and producer names and the other fields of a request, at their largest


def make_message(
    payload: bytes,
    *,
    id: str = "",  # noqa: A002 - the schema's word
    headers: Mapping[str, str] | None = None,
    when: timedelta | datetime | None = None,
    time_to_live: timedelta | None = None,
) -> Message:
    """A message of these parts. Raises TypeError if the payload is not bytes."""
    if not isinstance(payload, _BYTES):
        raise TypeError(f"a payload is bytes, not {type(payload).__name__}")
    if not headers and when is None and time_to_live is None:
        return Message(id=id, payload=bytes(payload))  # at a third of the cost, and what most messages are
    delay, not_before = available(when)
    return Message(
        id=id,
        payload=bytes(payload),
        headers=headers or {},
        delay=delay,
        not_before=not_before,
        time_to_live=span(time_to_live),
    )


def on_duplicate_value(name: OnDuplicateName) -> OnDuplicate.ValueType:
    """The wire's value. Raises ValueError for another name."""
    if name not in _ON_DUPLICATE:
        raise ValueError(f"on_duplicate is one of {', '.join(_ON_DUPLICATE)}, not {name!r}")
    return _ON_DUPLICATE[name]


def batches(messages: Iterable[Message], limits: Limits) -> Iterator[list[Message]]:
    """The messages in order, in batches within the limits; one that is too large by itself stands alone."""
    most_bytes = max(1, limits.max_request_bytes - ENVELOPE_BYTES)
    batch: list[Message] = []
    size = 0
    for message in messages:
        own = message.ByteSize() + FRAMING_BYTES
        if batch and (len(batch) >= limits.max_batch_messages or size + own > most_bytes):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += own
    if batch:
        yield batch


async def send_batch(connection: Connection, request: PutRequest) -> PutResponse:
    """Makes one Put, and makes it again as long as its deadline allows and that is safe; see `Connection.call`.

    After a lost answer the repeat says KEEP instead of REJECT, so that what the first try accepted is answered
    `deduplicated` and not refused; what another message of the same id was kept for is refused all the same.
    """
    asked = request.on_duplicate
    response = await connection.call(connection.queues.Put, request)
    if request.on_duplicate != asked:
        for result in response.results:
            if result.deduplicated and result.body_differs:
                result.CopyFrom(duplicate(request.queue, result.id))
    return response


def held_up_by(results: Iterable[PutResult]) -> HeadwayError | None:
    """Why the first message was refused that may be taken later, so that none must overtake it; None if none was."""
    errors = (from_status(result.error) for result in results if result.HasField("error"))
    return next((e for e in errors if e.is_passing and not isinstance(e, AlreadyExists)), None)


def duplicate(queue: str, message_id: str) -> PutResult:
    """The result of a message whose id belongs to another one."""
    status = Status(
        code=grpc.StatusCode.ALREADY_EXISTS.value[0],
        message="another message with this id is known",
        reason=ErrorReason.ERROR_REASON_DUPLICATE_MESSAGE,
        metadata={"queue": queue, "id": message_id},
    )
    return PutResult(id=message_id, error=status)
