"""Lease tokens: what a holder is given, and how the scripts name the same lease.

A token is generation (8 bytes), ticket (8), random (16) and attempt (4), in URL-safe base64 without padding.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Callable
from typing import NamedTuple

_LAYOUT = struct.Struct(">8sQ16sI")
_GENERATION_BYTES, _NONCE_AT = 8, 16
_LENGTH = 48
RANDOM_BYTES = 16
_LARGEST_TICKET = 2**53
_TO_URL_SAFE, _FROM_URL_SAFE = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")


class LeaseName(NamedTuple):
    """A lease in the scripts' words: generation as hex, ticket, nonce (random and attempt)."""

    generation: bytes
    ticket: int
    nonce: bytes


UNKNOWN = LeaseName(b"", 0, b"")


def encoder(generation: bytes) -> Callable[[int, bytes, int], str]:
    """Makes the tokens of new leases of this generation, from ticket, random part and attempt."""
    name, pack = bytes.fromhex(generation.decode()), _LAYOUT.pack

    def encode(ticket: int, random: bytes, attempt: int) -> str:
        packed = pack(name, ticket, random, attempt)
        return binascii.b2a_base64(packed, newline=False).translate(_TO_URL_SAFE).decode()

    return encode


def decode(token: str) -> LeaseName:
    """The lease a token names; one that nobody ever gave is UNKNOWN, which no queue knows either."""
    if len(token) != _LENGTH:
        return UNKNOWN
    try:
        packed = binascii.a2b_base64(token.encode("ascii").translate(_FROM_URL_SAFE))
    except (ValueError, UnicodeEncodeError):  # binascii.Error is a ValueError
        return UNKNOWN
    ticket = int.from_bytes(packed[_GENERATION_BYTES:_NONCE_AT])
    if len(packed) != _LAYOUT.size or ticket > _LARGEST_TICKET:
        return UNKNOWN
    return LeaseName(binascii.hexlify(packed[:_GENERATION_BYTES]), ticket, packed[_NONCE_AT:])
