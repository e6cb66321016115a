"""Replies by columns: the bytes of many entries that are mostly alike, put together at once.

To fill in a message field by field costs several times what it takes to put its bytes together. What entries have in
common is made once, and what counts up from one to the next is found in tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby

from google.protobuf.descriptor import Descriptor

from headway.v1 import message_pb2
from headwayd.domain.columns import FirstAcks, FirstDeliveries
from headwayd.rpc.spans import set_duration, set_timestamp
from headwayd.rpc.wire_format import HIGHEST_OF_A_BYTE, tag_of, varint

_DELIVERY, _MESSAGE = message_pb2.Delivery.DESCRIPTOR, message_pb2.Message.DESCRIPTOR
_MESSAGE_TAG, _LEASE_TAG, _TICKET_TAG = (tag_of(_DELIVERY, name) for name in ("message", "lease", "ticket"))
_ID_TAG, _PAYLOAD_TAG = tag_of(_MESSAGE, "id"), tag_of(_MESSAGE, "payload")
_RESULT = message_pb2.SettleResult.DESCRIPTOR
_RESULT_LEASE_TAG = tag_of(_RESULT, "lease")
_ACKED = tag_of(_RESULT, "settled") + varint(message_pb2.SETTLED_ACKED)
# The last digits of numbers, by how many there are.
_DIGITS = {count: [b"%0*d" % (count, number) for number in range(10**count)] for count in (1, 2, 3)}
_MOST_DIGITS = max(_DIGITS)
# The lowest seven bits of a number, where it has no more, and where it has.
_ONLY_BITS, _LOW_BITS = [bytes([bits]) for bits in range(128)], [bytes([bits | 128]) for bits in range(128)]
_COLUMNS = 11


def first_deliveries(of: Descriptor, name: str, deliveries: FirstDeliveries) -> bytes | None:
    """Field `name` of a message with these entries; None where tickets are not all as long as each other.

    There must be an entry.
    """
    tickets, count = deliveries.tickets, len(deliveries)
    least, most = tickets[0], tickets[-1]
    digit_count, ticket_length, lease_length = len(str(least)), len(varint(least)), len(deliveries.leases[0])
    is_unlike = digit_count != len(str(most)) or ticket_length != len(varint(most))
    if is_unlike or lease_length > HIGHEST_OF_A_BYTE:
        return None
    made = f"~{deliveries.generation}-".encode()
    made = _ID_TAG + varint(len(made) + digit_count) + made
    lease_head = _LEASE_TAG + varint(lease_length)
    ticket_head = _lease_times(deliveries) + _TICKET_TAG
    own_length = len(lease_head) + lease_length + len(ticket_head) + ticket_length
    id_length, tag = len(made) + digit_count, tag_of(of, name)

    def payload_head(size: int) -> bytes:
        return _PAYLOAD_TAG + varint(size) if size else b""  # what is empty is not written

    def head(size: int, times_length: int) -> bytes:
        """What stands before the id of a message."""
        message_length = id_length + len(payload_head(size)) + size
        message_head = _MESSAGE_TAG + varint(message_length)
        return tag + varint(len(message_head) + message_length + own_length + times_length) + message_head

    sizes = list(map(len, deliveries.payloads))
    heads: list[bytes] = []
    times: list[bytes] = []
    for put_at_ms, run in groupby(deliveries.put_at_ms):
        own = _put_times(deliveries, put_at_ms)
        part = sizes[len(times) : len(times) + len(list(run))]
        times += [own] * len(part)
        heads += _for_each(part, partial(head, times_length=len(own)))

    entries: list[bytes] = [lease_head] * (_COLUMNS * count)
    entries[0::_COLUMNS] = heads
    entries[1::_COLUMNS], entries[2::_COLUMNS] = _decimals(tickets, made)
    entries[3::_COLUMNS] = _for_each(sizes, payload_head)
    entries[4::_COLUMNS] = deliveries.payloads
    # The next one is the head of a lease already.
    entries[6::_COLUMNS] = map(str.encode, deliveries.leases)
    entries[7::_COLUMNS] = [ticket_head] * count
    entries[8::_COLUMNS], entries[9::_COLUMNS] = _varints(tickets)
    entries[10::_COLUMNS] = times
    return b"".join(entries)


def _for_each(sizes: Sequence[int], make: Callable[[int], bytes]) -> list[bytes]:
    """What `make` makes of each. Most often they are all the same."""
    made = {size: make(size) for size in set(sizes)}
    return list(made.values()) * len(sizes) if len(made) == 1 else list(map(made.__getitem__, sizes))


def _decimals(tickets: range, before: bytes) -> tuple[list[bytes], list[bytes]]:
    """Their last digits, and what stands before these in each. All have as many digits."""
    digit_count = len(str(tickets[0]))
    last = min(digit_count, _MOST_DIGITS)
    heads: list[bytes] = []
    tails: list[bytes] = []
    for high, low, count in _blocks(tickets, 10**last):
        heads += [before + str(high).encode() if digit_count > last else before] * count
        tails += _DIGITS[last][low : low + count]
    return heads, tails


def _varints(tickets: range) -> tuple[list[bytes], list[bytes]]:
    """The same as numbers of the format: the lowest bits of each, and the others."""
    heads: list[bytes] = []
    tails: list[bytes] = []
    for high, low, count in _blocks(tickets, 128):
        heads += (_LOW_BITS if high else _ONLY_BITS)[low : low + count]
        tails += [varint(high) if high else b""] * count
    return heads, tails


def _blocks(numbers: range, size: int) -> Iterator[tuple[int, int, int]]:
    """Those of each block of so many: the block, where in it they begin, and how many they are."""
    at, end = numbers.start, numbers.stop
    while at < end:
        block, low = divmod(at, size)
        count = min(end - at, size - low)
        yield block, low, count
        at += count


def _lease_times(deliveries: FirstDeliveries) -> bytes:
    times = message_pb2.Delivery(attempt=deliveries.attempt)
    set_timestamp(times.lease_expires_at, deliveries.lease_expires_at_ms)
    return times.SerializeToString()


def _put_times(deliveries: FirstDeliveries, put_at_ms: int) -> bytes:
    times = message_pb2.Delivery()
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
