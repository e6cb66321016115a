"""How the scripts name the leases that tokens name."""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import cast

from headwayd.domain import leases
from headwayd.domain.leases import LENGTH, RANDOM_BYTES, LeaseRuns, Name, Run, encoder, run_of

__all__ = ["RANDOM_BYTES", "decode", "decode_all", "encoder"]

_UNKNOWN = Name(b"", 0, b"")
_OF_A_STEP = itemgetter(0, 2)
_LOOKED_AT_TOGETHER = 100  # tokens; a batch that is acked as it came mostly has as many, or more


def decode(token: str) -> Name:
    """The lease a token names, its generation as hex; one that nobody ever gave names what no queue knows."""
    name = leases.named(token) or _UNKNOWN
    return name._replace(generation=binascii.hexlify(name.generation))


def decode_all(tokens: Sequence[str]) -> list[bytes | int]:
    """The words by which scripts know these leases (lua/include/settle.lua): of each run of leases of one step their
    generation, nonce and number, and then tickets; if these follow each other, the number below 0 and the first."""
    words: list[bytes | int] = []
    if type(tokens) is LeaseRuns:
        for run in tokens.runs:
            words += _run_words(run)
        return words
    last: Run | None = None  # what would go on with the run before, whose words are the last
    for at in range(0, len(tokens), _LOOKED_AT_TOGETHER):
        some = tokens[at : at + _LOOKED_AT_TOGETHER]
        found = run_of(some)
        if found is None:
            words += _words(some)
        elif last is not None and found.follows(last):
            words[-2] = cast(int, words[-2]) - len(some)
        else:
            words += _run_words(found)
        last = found
    return words


def _run_words(run: Run) -> tuple[bytes, bytes, int, int]:
    return binascii.hexlify(run.generation), run.nonce, -len(run.tickets), run.tickets.start


def _words(tokens: Sequence[str]) -> list[bytes | int]:
    words: list[bytes | int] = []
    for (generation, nonce), run in groupby(_names(tokens), key=_OF_A_STEP):
        tickets = [ticket for _, ticket, _ in run]
        first, count = tickets[0], len(tickets)
        if count > 1 and tickets == list(range(first, first + count)):
            words += (binascii.hexlify(generation), nonce, -count, first)
        else:
            words += (binascii.hexlify(generation), nonce, count, *tickets)
    return words


def _names(tokens: Sequence[str]) -> Sequence[Name]:
    """What each tells. Where one is no token, each is looked at by itself."""
    if set(map(len, tokens)) == {LENGTH} and (text := "".join(tokens)).isascii():
        names = leases.decoded_together(text.encode())
        if names is not None:
            return names
    return [leases.named(token) or _UNKNOWN for token in tokens]
