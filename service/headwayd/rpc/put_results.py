"""The results of a batch whose messages all joined the tail, in the bytes of the schema.

To have the schema's own code make a result for each takes eight times as long. What differs from one result to the next
are a few digits and bits that count up; all around them stays the same for a while. So for that while the results are
one piece of bytes, repeated, into which each byte that differs is written for all of them at once.
"""

from __future__ import annotations

from headway.v1.message_pb2 import PutResult
from headwayd.domain.joined import Joined, made_id
from headwayd.rpc.wire_format import HIGHEST_OF_A_BYTE, WITH_LENGTH, tag, tag_of, varint

_ID, _TICKET, _POSITION = (tag_of(PutResult.DESCRIPTOR, name) for name in ("id", "ticket", "position"))
# The digits of ten thousand numbers, one by one, from their last on.
_DIGITS = tuple(bytes(48 + number // ten % 10 for number in range(10_000)) for ten in (1, 10, 100, 1_000))
# The seven lowest bits of the numbers that have fourteen, and the seven above: in a number's last byte, and in another.
_SPAN = 1 << 14
_LAST = tuple(bytes(number >> shift & 0x7F for number in range(_SPAN)) for shift in (0, 7))
_NOT_LAST = tuple(bytes(bits | 0x80 for bits in column) for column in _LAST)


def results_in_bytes(joined: Joined, field: int) -> bytes | None:
    """The results as the repeated field of this number; None for what is too unusual to be worth it."""
    if joined.ticket < 1 or joined.position < 1:  # what is 0 is not written
        return None
    before = tag(field, WITH_LENGTH)
    ticket, position = joined.ticket, joined.position
    end = ticket + len(joined)
    runs = []
    while ticket < end:
        digit_count = min(len(str(ticket)), len(_DIGITS))
        digits = ticket % 10**digit_count
        count = min(end - ticket, 10**digit_count - digits, _alike_from(ticket), _alike_from(position))
        name = made_id(joined.generation, ticket).encode()
        ticket_bytes, position_bytes = _TICKET + varint(ticket), _POSITION + varint(position)
        size = len(_ID) + 1 + len(name) + len(ticket_bytes) + len(position_bytes)
        if size > HIGHEST_OF_A_BYTE:
            return None
        result = b"".join((before, bytes([size]), _ID, bytes([len(name)]), name, ticket_bytes, position_bytes))
        run, width = bytearray(result * count), len(result)
        at_position = width - len(position_bytes) + 1  # behind its tag
        at_ticket = at_position - len(ticket_bytes)
        for place in range(digit_count):
            run[at_ticket - 2 - place :: width] = _DIGITS[place][digits : digits + count]
        _count_up(run, at_ticket, width, ticket, len(ticket_bytes) - 1)
        _count_up(run, at_position, width, position, len(position_bytes) - 1)
        runs.append(run)
        ticket, position = ticket + count, position + count
    return b"".join(runs)


def _alike_from(number: int) -> int:
    """How many numbers from this on differ in their two lowest bytes only, and have as many."""
    return HIGHEST_OF_A_BYTE + 1 - number if number <= HIGHEST_OF_A_BYTE else _SPAN - number % _SPAN


def _count_up(run: bytearray, at: int, width: int, number: int, size: int) -> None:
    """Makes of the number of `size` bytes that stands there, and again every `width` bytes, this one and those behind
    it."""
    first, count = number % _SPAN, len(run) // width
    run[at::width] = (_LAST if size == 1 else _NOT_LAST)[0][first : first + count]
    if size > 1:
        run[at + 1 :: width] = (_LAST if size == len(_LAST) else _NOT_LAST)[1][first : first + count]
