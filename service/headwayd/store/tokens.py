"""Lease tokens: what a holder is given, and how the scripts name the same lease.

A token is generation (8 bytes), ticket (8), random (16) and attempt (4), in URL-safe base64 without padding.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

_LAYOUT = struct.Struct(">8sQ16sI")
_PARTS_LAYOUT = struct.Struct(">8sQ20s")  # the same, random and attempt in one: the nonce
LENGTH = 48
RANDOM_BYTES = 16
_LARGEST_TICKET = 2**53
_TO_URL_SAFE, _FROM_URL_SAFE = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")


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


def encode_all(generation: bytes, tickets: Iterable[int], random: bytes, attempt: int) -> list[str]:
    """The same for many at once. A token has no padding, so those of many are the pieces of one text."""
    head, tail = bytes.fromhex(generation.decode()), random + attempt.to_bytes(4)
    packed = b"".join([head + ticket.to_bytes(8) + tail for ticket in tickets])
    text = binascii.b2a_base64(packed, newline=False).translate(_TO_URL_SAFE).decode()
    return [text[at : at + LENGTH] for at in range(0, len(text), LENGTH)]


def decode(token: str) -> LeaseName:
    """The lease a token names; one that nobody ever gave names what no queue knows."""
    generation, ticket, nonce = _part(token)
    return LeaseName(binascii.hexlify(generation), ticket, nonce)


def decode_all(tokens: Sequence[str]) -> list[bytes | int]:
    """The words by which scripts know these leases (lua/include/settle.lua): of each run of leases of one step their
    generation, nonce and number, and then tickets; if these follow each other, the number below 0 and the first."""
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
