"""Puts messages: makes them, splits many into batches that the service accepts, and repeats what is safe to repeat."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Literal

from headway._backoff import backoff_seconds
from headway._channel import Connection
from headway._errors import Unavailable
from headway._spans import available, whole_milliseconds
from headway.v1.admin_service_pb2 import Limits
from headway.v1.message_pb2 import Message, OnDuplicate
from headway.v1.queue_service_pb2 import PutRequest, PutResponse

OnDuplicateName = Literal["reject", "keep", "replace"]

_ON_DUPLICATE: dict[str, OnDuplicate.ValueType] = {
    "reject": OnDuplicate.ON_DUPLICATE_REJECT,
    "keep": OnDuplicate.ON_DUPLICATE_KEEP,
    "replace": OnDuplicate.ON_DUPLICATE_REPLACE,
}
_MOST_TRIES = 5
_FRAMING_BYTES = 6  # tag and length of one message in a request
_ENVELOPE_BYTES = 1024  # queue and producer names and the other fields of a request, at their largest


def make_message(
    payload: bytes,
    *,
    id: str = "",  # noqa: A002 - the schema's word
    headers: Mapping[str, str] | None = None,
    when: timedelta | datetime | None = None,
    time_to_live: timedelta | None = None,
) -> Message:
    """A message of these parts. Raises TypeError if the payload is not bytes."""
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise TypeError(f"a payload is bytes, not {type(payload).__name__}")
    delay, not_before = available(when) if when is not None else (None, None)
    return Message(
        id=id,
        payload=bytes(payload),
        headers=headers or {},
        delay=delay,
        not_before=not_before,
        time_to_live=whole_milliseconds(time_to_live) if time_to_live is not None else None,
    )


def on_duplicate_value(name: OnDuplicateName) -> OnDuplicate.ValueType:
    """The wire's value. Raises ValueError for another name."""
    if name not in _ON_DUPLICATE:
        raise ValueError(f"on_duplicate is one of {', '.join(_ON_DUPLICATE)}, not {name!r}")
    return _ON_DUPLICATE[name]


def batches(messages: Iterable[Message], limits: Limits) -> Iterator[list[Message]]:
    """The messages in order, in batches within the limits; one that is too large by itself stands alone."""
    most_bytes = max(1, limits.max_request_bytes - _ENVELOPE_BYTES)
    batch: list[Message] = []
    size = 0
    for message in messages:
        own = message.ByteSize() + _FRAMING_BYTES
        if batch and (len(batch) >= limits.max_batch_messages or size + own > most_bytes):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += own
    if batch:
        yield batch


async def send_batch(connection: Connection, request: PutRequest, wait: timedelta | None) -> PutResponse:
    """Makes one Put, and makes it again after UNAVAILABLE as long as its deadline allows and that is safe.

    It is safe if nothing happened, or if every message carries an id. After a lost answer the repeat says KEEP instead
    of REJECT, so that what the first try accepted is answered `deduplicated` and not refused.
    """
    clock = asyncio.get_running_loop().time
    patience = max(0.0, wait.total_seconds()) if wait is not None else 0.0
    started = clock()
    deadline = started + patience + connection.call_timeout.total_seconds()
    has_ids = all(message.id for message in request.messages)
    failures = 0
    while True:
        try:
            return await connection.call(connection.queues.Put, request, wait=wait)
        except Unavailable as error:
            failures += 1
            pause = backoff_seconds(failures, error.retry_after)
            is_safe = has_ids or not error.is_outcome_unknown
            if not is_safe or failures >= _MOST_TRIES or clock() + pause >= deadline:
                raise
            if error.is_outcome_unknown and request.on_duplicate != OnDuplicate.ON_DUPLICATE_REPLACE:
                request.on_duplicate = OnDuplicate.ON_DUPLICATE_KEEP
        await asyncio.sleep(pause)
        if wait is not None:
            wait = timedelta(seconds=max(0.0, started + patience - clock()))
            request.wait.CopyFrom(whole_milliseconds(wait))
