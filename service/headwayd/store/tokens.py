"""Lease tokens: what a holder is given, and how the scripts name the same lease.

A token is generation (8 bytes), ticket (8), random (16) and attempt (4), in URL-safe base64 without padding.
"""

from __future__ import annotations

import base64
import binascii
import struct
from dataclasses import dataclass

_LAYOUT = struct.Struct(">8sQ20s")
_LENGTH = 48
RANDOM_BYTES = 16
_LARGEST_TICKET = 2**53


@dataclass(frozen=True, slots=True)
class LeaseName:
    """A lease in the scripts' words: generation as hex, ticket in decimal, nonce (random and attempt)."""

    generation: bytes
    ticket: bytes
    nonce: bytes


UNKNOWN = LeaseName(b"", b"0", b"")


def encode(generation: bytes, ticket: int, random: bytes, attempt: int) -> str:
    """The token of a new lease."""
    packed = _LAYOUT.pack(bytes.fromhex(generation.decode()), ticket, random + struct.pack(">I", attempt))
    return base64.urlsafe_b64encode(packed).decode()


def decode(token: str) -> LeaseName:
    """The lease a token names; one that nobody ever gave is UNKNOWN, which no queue knows either."""
    if len(token) != _LENGTH:
        return UNKNOWN
    try:
        generation, ticket, nonce = _LAYOUT.unpack(base64.urlsafe_b64decode(token.encode("ascii")))
    except (binascii.Error, ValueError, UnicodeEncodeError, struct.error):
        return UNKNOWN
    if ticket > _LARGEST_TICKET:
        return UNKNOWN
    return LeaseName(generation.hex().encode(), b"%d" % ticket, nonce)
