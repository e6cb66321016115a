"""From the bytes of a request to its message; bytes that are none become a proper refusal.

gRPC itself answers UNKNOWN with the name of a Python class if a deserializer raises. So ours returns an `Undecodable`
instead, which the edge turns into the status of its error. A large one comes as `Large`, which tells its size; so does
each that is `counted` whatever its size. One with many messages that are nothing but payloads of one size is not read
message by message, and comes as a `BareRequest`; one that acks runs of leases not lease by lease (`lease_runs`).
Requests that generated code has read are `weighed`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtoMessage
from google.protobuf.unknown_fields import UnknownFieldSet

from headway.v1.queue_service_pb2 import DescribeRequest
from headwayd.domain.errors import FieldInvalid, HeadwayError, NameRefused, TooLarge, Violation
from headwayd.domain.footprint import MESSAGE_BYTES
from headwayd.rpc.bare_messages import BareRequest, bare_request
from headwayd.rpc.lease_runs import AckStep, RunsRequest, cut_of
from headwayd.rpc.room import LARGE_BYTES, Large
from headwayd.rpc.wire_format import tag_of

Request = TypeVar("Request", bound=ProtoMessage)
Cut = BareRequest | RunsRequest | AckStep  # out of the bytes of a request

_TOLD = {"queue": "queue", "start.queue": "queue", "to_queue": "to_queue"}  # the names of queues, by their paths
_NAMED = DescribeRequest  # has nothing but a queue's name, with the number that this has in every request
WHOLE_REQUEST = "request"  # the path of a violation that belongs to no single field
_LENGTH_DELIMITED = 2
# Looking for the culprit costs Python time for every field, so it is done for requests of this size only; in larger
# ones only the queue's name is looked at.
_MAX_EXPLAINED_BYTES = 64 * 1024
# A smaller request is read as it is: many messages do not fit into it, or cost next to nothing.
_LEAST_CUT_BYTES = 256


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Stands in the place of a request that could not be read."""

    error: HeadwayError


def decoder(
    message_class: type[Request], *, max_bytes: int, counted: bool = False
) -> Callable[[bytes], Request | Cut | Large | Undecodable]:
    """A deserializer for `message_class` that never raises, for requests of at most `max_bytes`."""
    descriptor = cast(Descriptor, message_class.DESCRIPTOR)
    has_messages = _has_messages(descriptor)
    tag = tag_of(descriptor, "messages")[0] if has_messages else 0
    cut_runs = cut_of(message_class)
    large_bytes = 0 if counted else LARGE_BYTES

    def decode(raw: bytes) -> Request | Cut | Large | Undecodable:
        size = len(raw)
        if size > max_bytes:
            return Undecodable(_too_large(size, max_bytes))
        request: Request | Cut | None = None if cut_runs is None else cut_runs(raw)
        count = 0
        if has_messages and size >= _LEAST_CUT_BYTES and (bare := bare_request(raw, message_class, tag)):
            request, count = bare, len(bare.payloads)
        if request is None:
            try:
                request = message_class.FromString(raw)
            except DecodeError:
                return Undecodable(_refusal(raw, descriptor))
            if has_messages:
                count = len(cast(Any, request).messages)
        if count:
            size = _taken(size, count, max_bytes)
        return request if size < large_bytes else Large(request, size)

    return decode


def weighed(request: Request, *, max_bytes: int, counted: bool = False) -> Request | Large | Undecodable:
    """The same for a request that was read by somebody else: it has the size that it takes at least."""
    size = request.ByteSize()
    if size > max_bytes:
        return Undecodable(_too_large(size, max_bytes))
    if _has_messages(cast(Descriptor, request.DESCRIPTOR)):
        size = _taken(size, len(cast(Any, request).messages), max_bytes)
    return Large(request, size) if counted or size >= LARGE_BYTES else request


def _has_messages(descriptor: Descriptor) -> bool:
    messages = descriptor.fields_by_name.get("messages")
    return messages is not None and messages.is_repeated


def _taken(size: int, count: int, max_bytes: int) -> int:
    """What a request takes that has so many messages: never more than one may have, for which there is room."""
    return min(size + MESSAGE_BYTES * count, max_bytes)


def _too_large(size: int, limit: int) -> TooLarge:
    return TooLarge(
        f"the request has {size} bytes, at most {limit} are accepted",
        metadata={"field": WHOLE_REQUEST, "limit": str(limit), "size": str(size)},
        violations=[Violation(WHOLE_REQUEST, f"has {size} bytes, at most {limit} are accepted")],
    )


def _refusal(raw: bytes, descriptor: Descriptor) -> HeadwayError:
    find = _path_of_bad_text if len(raw) <= _MAX_EXPLAINED_BYTES else _path_of_bad_name
    path = find(raw, descriptor)
    if path is None:
        description = f"is no valid {descriptor.full_name}"
        path = WHOLE_REQUEST
    else:
        description = "is not valid UTF-8"
    error_class = NameRefused if path in _TOLD else FieldInvalid
    path = _TOLD.get(path, path)
    return error_class(f"{path} {description}", metadata={"field": path}, violations=[Violation(path, description)])


def _path_of_bad_text(raw: bytes, descriptor: Descriptor) -> str | None:
    """The path of the first text field that is not UTF-8; None if the bytes are wrong in another way.

    Read as a message without fields, everything is an unknown field, and those are not checked to be UTF-8.
    """
    try:
        fields: Any = UnknownFieldSet(Empty.FromString(raw))
    except DecodeError:
        return None
    seen: dict[int, int] = {}
    for entry in fields:
        field = descriptor.fields_by_number.get(entry.field_number)
        if field is None or entry.wire_type != _LENGTH_DELIMITED:
            continue
        index = seen[entry.field_number] = seen.get(entry.field_number, -1) + 1
        name = f"{field.name}[{index}]" if field.is_repeated and not _is_map(field) else field.name
        if field.type == FieldDescriptor.TYPE_STRING and not _is_utf8(entry.data):
            return name
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            below = _path_of_bad_text(entry.data, cast(Descriptor, field.message_type))
            if below is not None:
                return name if _is_map(field) else f"{name}.{below}"
    return None


def _path_of_bad_name(raw: bytes, descriptor: Descriptor) -> str | None:
    """The same for the queue's name only: read as a message that has no other field, the rest is not checked."""
    name = _NAMED.DESCRIPTOR.fields_by_name["queue"]
    field = descriptor.fields_by_number.get(name.number)
    has_one = field is not None and field.name == name.name
    return name.name if has_one and _is_read_by(Empty, raw) and not _is_read_by(_NAMED, raw) else None


def _is_read_by(message_class: type[ProtoMessage], raw: bytes) -> bool:
    try:
        message_class.FromString(raw)
    except DecodeError:
        return False
    return True


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
