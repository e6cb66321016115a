"""Lease tokens: what a holder is given, and how the scripts name the same lease.

A token is generation (8 bytes), ticket (8), random (16) and attempt (4), in URL-safe base64 without padding.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

_LAYOUT = struct.Struct(">8sQ16sI")
_NAME_LAYOUT = struct.Struct(">8sQ20s")  # the same, random and attempt in one
_GENERATION_BYTES, _NONCE_AT = 8, 16
LENGTH = 48
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


def encode_all(generation: bytes, tickets: Iterable[int], random: bytes, attempt: int) -> list[str]:
    """The same for many at once. A token has no padding, so those of many are the pieces of one text."""
    head, tail = bytes.fromhex(generation.decode()), random + attempt.to_bytes(4)
    packed = b"".join([head + ticket.to_bytes(8) + tail for ticket in tickets])
    text = binascii.b2a_base64(packed, newline=False).translate(_TO_URL_SAFE).decode()
    return [text[at : at + LENGTH] for at in range(0, len(text), LENGTH)]


def decode(token: str) -> LeaseName:
    """The lease a token names; one that nobody ever gave is UNKNOWN, which no queue knows either."""
    if len(token) != LENGTH:
        return UNKNOWN
    try:
        packed = binascii.a2b_base64(token.encode("ascii").translate(_FROM_URL_SAFE))
    except (ValueError, UnicodeEncodeError):  # binascii.Error is a ValueError
        return UNKNOWN
    ticket = int.from_bytes(packed[_GENERATION_BYTES:_NONCE_AT])
    if len(packed) != _LAYOUT.size or ticket > _LARGEST_TICKET:
        return UNKNOWN
    return LeaseName(binascii.hexlify(packed[:_GENERATION_BYTES]), ticket, packed[_NONCE_AT:])


def decode_all(tokens: Sequence[str]) -> list[bytes | int]:
    """The three words of each lease, one behind the other. Where one is no token each is looked at for itself."""
    text = "".join(tokens)
    if len(text) == LENGTH * len(tokens) and all(len(token) == LENGTH for token in tokens):
        try:
            packed = binascii.a2b_base64(text.encode("ascii").translate(_FROM_URL_SAFE), strict_mode=True)
        except ValueError:
            packed = b""
        if len(packed) == _NAME_LAYOUT.size * len(tokens):
            words: list[bytes | int] = []
            tickets: list[int] = []
            generation, name = b"", b""
            for given, ticket, nonce in _NAME_LAYOUT.iter_unpack(packed):
                if given != generation:
                    generation, name = given, binascii.hexlify(given)
                words += (name, ticket, nonce)
                tickets.append(ticket)
            if max(tickets, default=0) <= _LARGEST_TICKET:
                return words
    return [word for token in tokens for word in decode(token)]
