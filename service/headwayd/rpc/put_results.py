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
# The digits of a thousand numbers, one by one, from their last on.
_DIGITS = tuple(bytes(48 + number // ten % 10 for number in range(1_000)) for ten in (1, 10, 100))
# The lowest seven bits of numbers that have no more, and of those that have.
_ALL_BITS, _LOW_BITS = bytes(range(128)), bytes(range(128, 256))


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
        digits, ticket_bits, position_bits = ticket % 10**digit_count, ticket & 127, position & 127
        count = min(end - ticket, 10**digit_count - digits, 128 - ticket_bits, 128 - position_bits)
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
        run[at_ticket::width] = _bits(ticket)[ticket_bits : ticket_bits + count]
        run[at_position::width] = _bits(position)[position_bits : position_bits + count]
        runs.append(run)
        ticket, position = ticket + count, position + count
    return b"".join(runs)


def _bits(number: int) -> bytes:
    return _ALL_BITS if number <= HIGHEST_OF_A_BYTE else _LOW_BITS
