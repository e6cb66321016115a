"""Finds out that a request's messages are nothing but their payloads, of all at once by the size of the request."""

from __future__ import annotations

from bisect import bisect_right
from itertools import repeat

from headway.v1 import message_pb2, queue_service_pb2

# The bytes around a payload in a message that has nothing else: a tag, and the length in 7 bits a byte.
_AROUND_PAYLOAD = ((0x80, 2), (0x4000, 3), (0x20_0000, 4), (0x1000_0000, 5))

# In a request each message has a tag and a length of its own: two bytes around one that has nothing. From each of these
# sizes of its payload on there is one byte more around that: a tag and a length within the message, and then one of
# the two lengths needs more.
_FROM_HERE_ON_MORE = (1, 1, 0x80 - 2, 0x80, 0x4000 - 3, 0x4000, 0x20_0000 - 4, 0x20_0000, 0x1000_0000 - 5, 0x1000_0000)


def is_bare(message: message_pb2.Message, payload_bytes: int) -> bool:
    """Whether it has nothing but its payload, by its size alone: what is there takes at least two bytes more."""
    if not payload_bytes:
        return message.ByteSize() == 0
    for below, around in _AROUND_PAYLOAD:
        if payload_bytes < below:
            return message.ByteSize() == payload_bytes + around
    return False


def bare_payloads(
    request: queue_service_pb2.PutRequest | queue_service_pb2.ProduceRequest, *, max_bytes: int
) -> list[bytes] | None:
    """The payloads of the request's messages, if these have nothing else, and none has more than `max_bytes`; None if
    not.

    With nothing else each takes as few bytes as it can with its payload. So whatever else is in one of them, and were
    it unknown to the schema, makes the request larger.
    """
    payloads = [message.payload for message in request.messages]
    sizes = [*map(len, payloads)]
    if max(sizes) > max_bytes:
        return None
    least = sum(sizes) + 2 * len(sizes) + sum(map(bisect_right, repeat(_FROM_HERE_ON_MORE), sizes))
    others = {field.name: value for field, value in request.ListFields() if field.name != "messages"}
    return payloads if request.ByteSize() == least + type(request)(**others).ByteSize() else None
