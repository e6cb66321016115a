"""Numbers and tags in the bytes of the schema, for replies that are put together, and requests that are cut to pieces,
without its own code.

Only what those need: everything else of the format is left to the schema's code.
"""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor, FieldDescriptor

NUMBER, WITH_LENGTH = 0, 2  # what follows a tag: a number, or a length and as many bytes
HIGHEST_OF_A_BYTE = 0x7F  # numbers, and so lengths, up to this are one byte
_LONGEST_NUMBER = 10  # bytes
_MOST_BEFORE = 8  # fields before the one looked for; a request has fewer, and who sends more is to cost no time either
_NUMBERS = {FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_ENUM}  # of the types that are written here


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first, each byte but the last marked."""
    if number <= HIGHEST_OF_A_BYTE:  # most are
        return bytes((number,))
    found = []
    while number > HIGHEST_OF_A_BYTE:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def number_at(raw: bytes, at: int) -> tuple[int, int]:
    """The number that begins there, and where it has ended. Raises IndexError if the bytes end before, ValueError if it
    is longer than any number of the format."""
    number = 0
    for shift in range(0, 7 * _LONGEST_NUMBER, 7):
        byte = raw[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte <= HIGHEST_OF_A_BYTE:
            return number, at
    raise ValueError("no number of the format")


def first_field(raw: bytes, tag: int) -> int:
    """Where the first field with this tag is. Raises IndexError if there is none, ValueError where something stands
    before it that no request has."""
    at = 0
    for _ in range(_MOST_BEFORE):
        if raw[at] == tag:
            return at
        follows = raw[at] & 7
        if raw[at] > HIGHEST_OF_A_BYTE or follows not in (NUMBER, WITH_LENGTH):
            break
        number, at = number_at(raw, at + 1)
        if follows == WITH_LENGTH:
            at += number
    raise ValueError("no request of the schema")


def tag(field: int, follows: int) -> bytes:
    """What stands before the field of this number."""
    return varint(field << 3 | follows)


def tag_of(message: Descriptor, name: str) -> bytes:
    """What stands before this field of a message."""
    field = message.fields_by_name[name]
    return tag(field.number, NUMBER if field.type in _NUMBERS else WITH_LENGTH)
