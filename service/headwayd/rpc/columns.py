"""Replies by columns: the bytes of many entries that are mostly alike, put together at once.

To fill in a message field by field costs several times what it takes to put its bytes together. What entries have in
common is made once, and what counts up from one to the next is found in tables.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from headway.v1 import message_pb2
from headwayd.domain.columns import FirstAcks, FirstDeliveries
from headwayd.domain.joined import made_id
from headwayd.domain.leases import LENGTH, LeaseRuns, blocks, joined, repeated
from headwayd.domain.pieces import cut
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
_ONLY_BITS, _LOW_BITS = bytes(range(128)), bytes(range(128, 256))
_COLUMNS = 7
_Shape = TypeVar("_Shape", bound=Hashable)
_Made = TypeVar("_Made")


def first_deliveries(of: Descriptor, name: str, deliveries: FirstDeliveries) -> bytes | None:
    """Field `name` of a message with these entries; None where tickets are not all as long as each other, and where a
    foreign client put headers that are none.

    There must be an entry.
    """
    tickets, count = deliveries.tickets, len(deliveries)
    least, most = tickets[0], tickets[-1]
    digit_count, ticket_length = len(str(least)), len(varint(least))
    if ticket_length != len(varint(most)):
        return None
    lease_times = _lease_times(deliveries)
    own_length = len(_LEASE_TAG) + 1 + LENGTH + len(lease_times) + len(_TICKET_TAG) + ticket_length
    tag = tag_of(of, name)
    if deliveries.given_ids or deliveries.headers:
        return _framed(deliveries, tag, own_length, lease_times)
    if digit_count != len(str(most)):
        return None
    made = f"~{deliveries.generation}-".encode()
    made = _ID_TAG + varint(len(made) + digit_count) + made
    id_length = len(made) + digit_count

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

    entries = [b""] * (_COLUMNS * count)
    entries[0::_COLUMNS] = heads
    entries[1::_COLUMNS], entries[2::_COLUMNS] = _decimals(tickets, made)
    entries[3::_COLUMNS] = _for_each(sizes, payload_head)
    entries[4::_COLUMNS] = deliveries.payloads
    entries[5::_COLUMNS] = _numbers(deliveries.leases, lease_times + _TICKET_TAG)
    entries[6::_COLUMNS] = times
    return b"".join(entries)


def _framed(deliveries: FirstDeliveries, tag: bytes, own_length: int, lease_times: bytes) -> bytes | None:
    """The same of messages some of which have ids or headers. `own_length` is of what all entries have, in the same
    length, behind their message."""
    count, generation = len(deliveries), deliveries.generation
    if not _are_headers(deliveries.headers):
        return None

    def heads(shape: tuple[int, int, int, int]) -> tuple[bytes, bytes]:
        """What stands before the id of a message, and between that and its payload."""
        id_length, size, headers_length, times_length = shape
        id_head = _ID_TAG + varint(id_length)
        payload_head = _PAYLOAD_TAG + varint(size) if size else b""
        message_length = len(id_head) + id_length + len(payload_head) + size + headers_length
        message_head = _MESSAGE_TAG + varint(message_length)
        length = len(message_head) + message_length + own_length + times_length
        return tag + varint(length) + message_head + id_head, payload_head

    none = [b""] * count
    given = zip(deliveries.given_ids or none, deliveries.tickets, strict=True)
    ids = [given_id or made_id(generation, ticket).encode() for given_id, ticket in given]
    headers = deliveries.headers or none
    times: list[bytes] = []
    for put_at_ms, run in groupby(deliveries.put_at_ms):
        times += [_put_times(deliveries, put_at_ms)] * len(list(run))
    shapes = list(zip(*(map(len, column) for column in (ids, deliveries.payloads, headers, times)), strict=True))

    entries = [b""] * (_COLUMNS * count)
    entries[0::_COLUMNS], entries[2::_COLUMNS] = zip(*_for_each(shapes, heads), strict=True)
    entries[1::_COLUMNS] = ids
    entries[3::_COLUMNS] = deliveries.payloads
    entries[4::_COLUMNS] = headers
    entries[5::_COLUMNS] = _numbers(deliveries.leases, lease_times + _TICKET_TAG)
    entries[6::_COLUMNS] = times
    return b"".join(entries)


def _are_headers(all_headers: Sequence[bytes]) -> bool:
    """Whether each is the bytes of a message with headers only, as they are written here. A foreign client may have put
    any: behind an id and a payload they could be others, and what is no message at all nobody could read."""
    message = message_pb2.Message()
    try:
        for headers in set(all_headers):
            message.ParseFromString(headers)
            if message.id or message.payload or message.SerializeToString(deterministic=True) != headers:
                return False
    except DecodeError:
        return False
    return True


def _for_each(shapes: Sequence[_Shape], make: Callable[[_Shape], _Made]) -> list[_Made]:
    """What `make` makes of each. Most often they are all the same."""
    made = {shape: make(shape) for shape in set(shapes)}
    return list(made.values()) * len(shapes) if len(made) == 1 else list(map(made.__getitem__, shapes))


def _numbers(leases: LeaseRuns, ticket_tag: bytes) -> list[bytes]:
    """Lease and ticket of each."""
    lease_head = _LEASE_TAG + varint(LENGTH)
    numbers: list[bytes] = []
    for run in leases.runs:
        ticket = run.tickets.start
        for token, count, differing in blocks(run, most=128):
            template, low = lease_head + token + ticket_tag, ticket % 128
            lows = (_LOW_BITS if ticket > HIGHEST_OF_A_BYTE else _ONLY_BITS)[low : low + count]
            columns = [(len(template), lows), *((len(lease_head) + at, column) for at, column in differing)]
            made = repeated(template + varint(ticket), count, columns)
            numbers += cut(made, 0, count=count, size=len(made) // count)
            ticket += count
    return numbers


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
    length = LENGTH if type(leases) is LeaseRuns else len(leases[0])
    before = _RESULT_LEASE_TAG + varint(length)
    before = tag_of(of, name) + varint(len(before) + length + len(_ACKED)) + before
    between = _ACKED + before
    if type(leases) is LeaseRuns:
        return before + b"".join([joined(run, between) for run in leases.runs]).removesuffix(before)
    if length > HIGHEST_OF_A_BYTE or not _are_alike(leases, length):
        return None
    return before + between.decode("latin-1").join(leases).encode("latin-1") + _ACKED


def _are_alike(leases: Sequence[str], length: int) -> bool:
    return all(map(str.isascii, leases)) and set(map(len, leases)) == {length}
