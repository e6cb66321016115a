"""How a trace travels: out of a call's metadata, into and out of a message's headers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from headway.v1 import message_pb2
from headwayd.domain.limits import MAX_HEADERS, Limits
from headwayd.domain.tracing import TRACEPARENT, TRACESTATE, Carried, Handed

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.timestamp_pb2 import Timestamp

    from headwayd.rpc.edge import Context

# W3C asks for at least this much of a tracestate to be passed on, and allows to drop what is longer.
_MOST_STATE = 512


def caller_of(context: Context) -> Carried | None:
    """The context that the call itself came with."""
    found: dict[str, str] = {}
    for key, value in context.invocation_metadata() or ():
        if key in (TRACEPARENT, TRACESTATE) and isinstance(value, str):
            # Several lines of tracestate are one list (W3C); several parents are none.
            found[key] = f"{found[key]},{value}" if key in found else value
    return _carried(found)


def carried_by(message: message_pb2.Message) -> Carried | None:
    """The context that a message carries."""
    return _carried(message.headers) if message.headers else None


def _carried(texts: Mapping[str, str]) -> Carried | None:
    # Asked for in this order, because a map of protobuf makes an entry when one that is missing is read.
    if TRACEPARENT not in texts:
        return None
    return Carried(texts[TRACEPARENT], texts[TRACESTATE] if TRACESTATE in texts else "")  # noqa: SIM401 - as above


def write_into(messages: Iterable[message_pb2.Message], carried: Carried, limits: Limits, *, is_for_bare: bool) -> None:
    """Gives the context to those messages that carry none and have room for it: a message must not be refused for what
    its producer did not write."""
    state = carried.tracestate if len(carried.tracestate) <= _MOST_STATE else ""
    texts = {TRACEPARENT: carried.traceparent} | ({TRACESTATE: state} if state else {})
    most_bytes = limits.max_message_bytes - sum(len(key) + len(value) for key, value in texts.items())
    for message in messages:
        headers = message.headers
        if TRACEPARENT in headers or TRACESTATE in headers:
            continue
        if not is_for_bare and not _has_more_than_payload(message):
            continue
        # The size on the wire is a little more than what the limit counts.
        if len(headers) + len(texts) <= MAX_HEADERS and message.ByteSize() <= most_bytes:
            headers.update(texts)


def _has_more_than_payload(message: message_pb2.Message) -> bool:
    return any(field.name != "payload" for field, _ in message.ListFields())


def _ms(time: Timestamp | Duration) -> int:
    return time.seconds * 1_000 + time.nanos // 1_000_000


def handed(deliveries: Sequence[message_pb2.Delivery]) -> list[Handed]:
    """What a reply hands out."""
    return [_handed(delivery) for delivery in deliveries]


def _handed(delivery: message_pb2.Delivery) -> Handed:
    put_at_ms = _ms(delivery.put_at) if delivery.HasField("put_at") else None
    leased_at_ms = None
    if put_at_ms is not None and delivery.HasField("waited"):
        leased_at_ms = put_at_ms + _ms(delivery.waited)
    return Handed(
        id=delivery.message.id,
        lease=delivery.lease,
        attempt=delivery.attempt,
        ticket=delivery.ticket,
        put_at_ms=put_at_ms,
        leased_at_ms=leased_at_ms,
        expires_at_ms=_ms(delivery.lease_expires_at),
        carried=carried_by(delivery.message),
    )
