"""Finds out that a request's messages are nothing but their payloads, of all of them at once: where these are alike in
size by the request's bytes, else by its size.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import repeat
from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtoMessage

from headway.v1 import message_pb2, queue_service_pb2
from headwayd.domain.pieces import cut
from headwayd.rpc.wire_format import first_field, number_at, tag_of

MANY = 6  # messages; fewer are cheaper to look at one by one
_MOST_CUT = 10_000  # messages; a request with more of them is refused as a rule, and not worth the time before that
_PAYLOAD = tag_of(message_pb2.Message.DESCRIPTOR, "payload")[0]

# The bytes around a payload in a message that has nothing else: a tag, and the length in 7 bits a byte.
_AROUND_PAYLOAD = ((0x80, 2), (0x4000, 3), (0x20_0000, 4), (0x1000_0000, 5))

# In a request each message has a tag and a length of its own: two bytes around one that has nothing. From each of these
# sizes of its payload on there is one byte more around that: a tag and a length within the message, and then one of
# the two lengths needs more.
_FROM_HERE_ON_MORE = (1, 1, 0x80 - 2, 0x80, 0x4000 - 3, 0x4000, 0x20_0000 - 4, 0x20_0000, 0x1000_0000 - 5, 0x1000_0000)


def beside_payload(message: message_pb2.Message, payload_bytes: int) -> int:
    """How many bytes it has besides its payload: none, or at least two."""
    if not payload_bytes:
        return message.ByteSize()
    for below, around in _AROUND_PAYLOAD:
        if payload_bytes < below:
            return message.ByteSize() - payload_bytes - around
    return message.ByteSize() - payload_bytes


def bare_payloads(
    request: queue_service_pb2.PutRequest | queue_service_pb2.ProduceRequest, *, max_bytes: int
) -> list[bytes] | None:
    """The payloads of the request's messages, if these have nothing else, and none has more than `max_bytes`; None if
    not.

    With nothing else each takes as few bytes as it can with its payload. So whatever else is in one of them, and were
    it unknown to the schema, makes the request larger.
    """
    first = request.messages[0]
    if beside_payload(first, len(first.payload)):  # mostly all are alike
        return None
    payloads = [message.payload for message in request.messages]
    sizes = [*map(len, payloads)]
    if max(sizes) > max_bytes:
        return None
    least = sum(sizes) + 2 * len(sizes) + sum(map(bisect_right, repeat(_FROM_HERE_ON_MORE), sizes))
    others = {field.name: value for field, value in request.ListFields() if field.name != "messages"}
    return payloads if request.ByteSize() == least + type(request)(**others).ByteSize() else None


class BareRequest:
    """A request whose messages are nothing but payloads, all of one size, cut out of its bytes: messages are made only
    if somebody asks for them. Everything else of it is read as of the request itself."""

    __slots__ = ("_raw", "_rest", "payloads", "size")

    def __init__(self, raw: bytes, rest: ProtoMessage, payloads: Sequence[bytes], size: int) -> None:
        self._raw = raw
        self._rest = rest
        self.payloads = payloads
        self.size = size  # bytes of each

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rest, name)

    @property
    def messages(self) -> Any:
        """What the request's field of this name holds, made anew each time: what is written into it is lost."""
        return self.whole().messages

    def whole(self) -> Any:
        """The request itself, for who changes its messages; made anew each time."""
        return type(self._rest).FromString(self._raw)


def bare_request(raw: bytes, kind: type[ProtoMessage], tag: int) -> BareRequest | None:
    """The request of this kind in these bytes, if it has many messages, one behind the other, all of one size, and
    nothing but payloads; None if not, and if it is none. `tag` stands before each of its messages.

    Then each begins with the same few bytes, which say that it is a message, how long it is, and that all of this is a
    payload: they are compared column by column.
    """
    try:
        start = first_field(raw, tag)
        length, at = number_at(raw, start + 1)
        size, payload_at = number_at(raw, at + 1)
    except (IndexError, ValueError):
        return None
    stride = payload_at - start + size
    count = (len(raw) - start) // stride
    if not MANY <= count <= _MOST_CUT or raw[at] != _PAYLOAD or at + length != start + stride or not size:
        return None
    for place in range(start, payload_at):
        column = raw[place : start + count * stride : stride]
        count -= len(column.lstrip(column[:1]))  # from the first on that differs
    if count < MANY:
        return None
    end = start + count * stride
    try:
        rest: Any = kind.FromString(raw[:start] + raw[end:])
    except DecodeError:
        return None
    if rest.messages:
        return None
    return BareRequest(raw, rest, cut(raw, start, count=count, size=size, before=payload_at - start), size)
