"""Replies by columns: the bytes of many entries that are mostly alike, put together at once.

To fill in a message field by field costs twice what it takes to put its bytes together by a template and have
them read as a part of the reply. Nobody else sees these bytes: the reply is a message like every other.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.descriptor import Descriptor

from headway.v1 import message_pb2
from headwayd.domain.columns import FirstAcks, FirstDeliveries
from headwayd.rpc.spans import set_duration, set_timestamp
from headwayd.rpc.wire_format import HIGHEST_OF_A_BYTE, tag_of, varint

_LOW_BITS = 14  # of a ticket: two bytes of 7 bits
_DELIVERY, _MESSAGE = message_pb2.Delivery.DESCRIPTOR, message_pb2.Message.DESCRIPTOR
_MESSAGE_TAG, _LEASE_TAG, _TICKET_TAG = (tag_of(_DELIVERY, name) for name in ("message", "lease", "ticket"))
_ID_TAG, _PAYLOAD_TAG = tag_of(_MESSAGE, "id"), tag_of(_MESSAGE, "payload")
_RESULT = message_pb2.SettleResult.DESCRIPTOR
_RESULT_LEASE_TAG = tag_of(_RESULT, "lease")
_ACKED = tag_of(_RESULT, "settled") + varint(message_pb2.SETTLED_ACKED)


def first_deliveries(of: Descriptor, name: str, deliveries: FirstDeliveries) -> bytes | None:
    """Field `name` of a message with these entries; None where tickets are not all as long as each other.

    There must be an entry.
    """
    tickets = deliveries.tickets
    least, most = min(tickets), max(tickets)
    digits, high = len(str(most)), most >> _LOW_BITS
    lease_length = len(deliveries.leases[0])
    if len(str(least)) != digits or least >> _LOW_BITS != high or lease_length > HIGHEST_OF_A_BYTE:
        return None
    tag, made = tag_of(of, name), f"~{deliveries.generation}-".encode()

    def template(size: int, put_at_ms: int) -> bytes:
        """Where ticket, payload, lease and the ticket's low bits are left open."""
        message_id = [_ID_TAG, varint(len(made) + digits), made]
        payload = [_PAYLOAD_TAG, varint(size)]
        message_length = sum(map(len, message_id)) + digits + sum(map(len, payload)) + size
        before = [_MESSAGE_TAG, varint(message_length)]
        lease = [_LEASE_TAG, varint(lease_length)]
        ticket, behind = [_TICKET_TAG], [varint(high), _times(deliveries, put_at_ms)]
        length = sum(map(len, [*before, *lease, *ticket, *behind])) + message_length + lease_length + 2
        pieces = [[tag, varint(length), *before, *message_id], payload, lease, ticket, behind]
        id_end, payload_end, lease_end, ticket_end, end = (b"".join(piece).replace(b"%", b"%%") for piece in pieces)
        return b"%b%%d%b%%b%b%%b%b%%c%%c%b" % (id_end, payload_end, lease_end, ticket_end, end)

    templates: dict[tuple[int, int], bytes] = {}
    entries = []
    for ticket, payload, lease, put_at_ms in zip(
        tickets, deliveries.payloads, deliveries.leases, deliveries.put_at_ms, strict=True
    ):
        kind = (len(payload), put_at_ms)
        known = templates.get(kind)
        if known is None:
            known = templates[kind] = template(*kind)
        entries.append(known % (ticket, payload, lease.encode(), ticket & 0x7F | 0x80, ticket >> 7 & 0x7F | 0x80))
    return b"".join(entries)


def _times(deliveries: FirstDeliveries, put_at_ms: int) -> bytes:
    times = message_pb2.Delivery(attempt=deliveries.attempt)
    set_timestamp(times.lease_expires_at, deliveries.lease_expires_at_ms)
    if put_at_ms:
        set_timestamp(times.put_at, put_at_ms)
        set_duration(times.waited, deliveries.waited_ms(put_at_ms))
    return times.SerializeToString()


def first_acks(of: Descriptor, name: str, acks: FirstAcks) -> bytes | None:
    """Field `name` of a message with these results; None where leases are not all as long as each other.

    There must be a result.
    """
    leases = acks.leases
    length = len(leases[0])
    before = _RESULT_LEASE_TAG + varint(length)
    before = tag_of(of, name) + varint(len(before) + length + len(_ACKED)) + before
    if length > HIGHEST_OF_A_BYTE or not _are_alike(leases, length):
        return None
    between = (_ACKED + before).decode("latin-1")
    return before + between.join(leases).encode("latin-1") + _ACKED


def _are_alike(leases: Sequence[str], length: int) -> bool:
    return all(map(str.isascii, leases)) and set(map(len, leases)) == {length}
