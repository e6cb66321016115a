"""Lease tokens: what a holder is given, and how the scripts name the same lease.

A token is generation (8 bytes), ticket (8), random (16) and attempt (4), in URL-safe base64 without padding.
"""

from __future__ import annotations

import binascii
import string
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, cast

_LAYOUT = struct.Struct(">8sQ16sI")
_PARTS_LAYOUT = struct.Struct(">8sQ20s")  # the same, random and attempt in one: the nonce
LENGTH = 48
RANDOM_BYTES = 16
_LARGEST_TICKET = 2**53
_TO_URL_SAFE, _FROM_URL_SAFE = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")
# Where a token tells the lowest byte of its ticket, and how: by that and the first half byte of the random part.
_MIDDLE_AT = 20
_DIGITS = f"{string.ascii_uppercase}{string.ascii_lowercase}{string.digits}-_"
_MIDDLES = [[_DIGITS[low >> 2] + _DIGITS[(low & 3) << 4 | half] for low in range(256)] for half in range(16)]
_LOOKED_AT_TOGETHER = 100  # tokens; a batch that is acked as it came mostly has as many, or more


class LeaseName(NamedTuple):
    """A lease in the scripts' words: generation as hex, ticket, nonce (random and attempt)."""

    generation: bytes
    ticket: int
    nonce: bytes


_Parts = tuple[bytes, int, bytes]  # generation, ticket, nonce
_UNKNOWN: _Parts = (b"", 0, b"")
_TICKET, _OF_A_STEP = itemgetter(1), itemgetter(0, 2)


@lru_cache(maxsize=256)
def encoder(generation: bytes) -> Callable[[int, bytes, int], str]:
    """Makes the tokens of new leases of this generation, from ticket, random part and attempt."""
    name, pack = bytes.fromhex(generation.decode()), _LAYOUT.pack

    def encode(ticket: int, random: bytes, attempt: int) -> str:
        packed = pack(name, ticket, random, attempt)
        return binascii.b2a_base64(packed, newline=False).translate(_TO_URL_SAFE).decode()

    return encode


def encode_run(generation: bytes, first: int, count: int, random: bytes, attempt: int) -> list[str]:
    """The same for tickets that follow each other. But for two characters, which tell the lowest byte of a ticket, the
    tokens of 256 are alike."""
    encode, middles = encoder(generation), _MIDDLES[random[0] >> 4]
    run: list[str] = []
    while len(run) < count:
        ticket = first + len(run)
        low = ticket & 0xFF
        token = encode(ticket, random, attempt)
        head, tail = token[:_MIDDLE_AT], token[_MIDDLE_AT + 2 :]
        run += [f"{head}{middle}{tail}" for middle in middles[low : low + count - len(run)]]
    return run


def decode(token: str) -> LeaseName:
    """The lease a token names; one that nobody ever gave names what no queue knows."""
    generation, ticket, nonce = _part(token)
    return LeaseName(binascii.hexlify(generation), ticket, nonce)


def decode_all(tokens: Sequence[str]) -> list[bytes | int]:
    """The words by which scripts know these leases (lua/include/settle.lua): of each run of leases of one step their
    generation, nonce and number, and then tickets; if these follow each other, the number below 0 and the first."""
    words: list[bytes | int] = []
    last: _Parts | None = None  # what would go on with the run before, whose number and first ticket are the last words
    for at in range(0, len(tokens), _LOOKED_AT_TOGETHER):
        some = tokens[at : at + _LOOKED_AT_TOGETHER]
        count = len(some)
        if (run := _run(some)) is None:
            words += _words(some)
            last = None
            continue
        generation, ticket, nonce = run
        if run == last:
            words[-2] = cast(int, words[-2]) - count
        else:
            words += (binascii.hexlify(generation), nonce, -count, ticket)
        last = (generation, ticket + count, nonce)
    return words


def _run(tokens: Sequence[str]) -> _Parts | None:
    """The first of several that are leases of one step and follow each other. They are not read, but compared with what
    such leases would be: that takes a third of the time."""
    count = len(tokens)
    if count == 1:
        return None
    generation, ticket, nonce = parts = _part(tokens[0])
    if not nonce or ticket + count > _LARGEST_TICKET:
        return None
    random, attempt = nonce[:RANDOM_BYTES], int.from_bytes(nonce[RANDOM_BYTES:])
    expected = encode_run(binascii.hexlify(generation), ticket, count, random, attempt)
    return parts if expected == list(tokens) else None


def _words(tokens: Sequence[str]) -> list[bytes | int]:
    words: list[bytes | int] = []
    for (generation, nonce), run in groupby(_parts(tokens), key=_OF_A_STEP):
        tickets = [ticket for _, ticket, _ in run]
        first, count = tickets[0], len(tickets)
        if count > 1 and tickets == list(range(first, first + count)):
            words += (binascii.hexlify(generation), nonce, -count, first)
        else:
            words += (binascii.hexlify(generation), nonce, count, *tickets)
    return words


def _part(token: str) -> _Parts:
    if len(token) != LENGTH:
        return _UNKNOWN
    try:
        packed = binascii.a2b_base64(token.encode("ascii").translate(_FROM_URL_SAFE))
    except (ValueError, UnicodeEncodeError):  # binascii.Error is a ValueError
        return _UNKNOWN
    if len(packed) != _LAYOUT.size:
        return _UNKNOWN
    generation, ticket, nonce = _PARTS_LAYOUT.unpack(packed)
    return _UNKNOWN if ticket > _LARGEST_TICKET else (generation, ticket, nonce)


def _parts(tokens: Sequence[str]) -> Sequence[_Parts]:
    """Generation, ticket and nonce of each. Where one is no token, each is looked at by itself."""
    text = "".join(tokens)
    if set(map(len, tokens)) == {LENGTH}:
        try:
            packed = binascii.a2b_base64(text.encode("ascii").translate(_FROM_URL_SAFE), strict_mode=True)
        except ValueError:
            packed = b""
        if len(packed) == _LAYOUT.size * len(tokens):
            parts = list(_PARTS_LAYOUT.iter_unpack(packed))
            if max(map(_TICKET, parts)) <= _LARGEST_TICKET:
                return parts
    return [_part(token) for token in tokens]
