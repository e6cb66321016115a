"""Lease tokens: what a holder is given, how it is made and read, and many that are alike.

A token is generation (8 bytes), ticket (8), random (16) and attempt (4), in URL-safe base64 without padding. One step
of the store leases messages that mostly follow each other, and their tokens differ by two characters only. They are
kept as the run that they are: to make a text for each, and look it up wherever leases are counted, took a good part of
what a message cost.
"""

from __future__ import annotations

import binascii
import string
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import NamedTuple, overload

_LAYOUT = struct.Struct(">8sQ20s")
_TICKET = itemgetter(1)
LENGTH = 48
RANDOM_BYTES, _ATTEMPT_BYTES = 16, 4
LARGEST_TICKET = 2**53
_TO_URL_SAFE, _FROM_URL_SAFE = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")
# Where a token tells the lowest byte of its ticket, and how: by that and the first half byte of the random part.
_MIDDLE_AT, _MIDDLE_END = 20, 22
STEP_AT = _MIDDLE_END  # from here on tokens of one step, and attempt, are alike
_DIGITS = f"{string.ascii_uppercase}{string.ascii_lowercase}{string.digits}-_"
_MIDDLES = [[_DIGITS[low >> 2] + _DIGITS[(low & 3) << 4 | half] for low in range(256)] for half in range(16)]
# The same by columns: of each half byte the first characters of all, and the second ones.
_COLUMNS = [[bytes(map(ord, column)) for column in zip(*middles, strict=True)] for middles in _MIDDLES]
_ALIKE = 256  # leases of a run, from one whose ticket is divisible by this


class Name(NamedTuple):
    """What a token tells: the generation of a queue, a ticket, and the nonce (random part and attempt)."""

    generation: bytes
    ticket: int
    nonce: bytes


class Run(NamedTuple):
    """Leases of one step whose tickets follow each other."""

    generation: bytes
    nonce: bytes
    tickets: range

    @property
    def step(self) -> str:
        """See `step_of`."""
        return step_of(encoded(self.generation, self.tickets.start, self.nonce).decode())

    def follows(self, before: Run) -> bool:
        """Whether it goes on where the other ends."""
        return self.tickets.start == before.tickets.stop and self[:2] == before[:2]


def nonce_of(random: bytes, attempt: int) -> bytes:
    """What leases of one step have in common: its random part, and which attempt of their messages it is."""
    return random + attempt.to_bytes(_ATTEMPT_BYTES)


@lru_cache(maxsize=256)
def encoder(generation: bytes) -> Callable[[int, bytes, int], str]:
    """Makes the tokens of new leases of this generation (as hex), from ticket, random part and attempt."""
    name = bytes.fromhex(generation.decode())

    def encode(ticket: int, random: bytes, attempt: int) -> str:
        return encoded(name, ticket, nonce_of(random, attempt)).decode()

    return encode


def encoded(generation: bytes, ticket: int, nonce: bytes) -> bytes:
    """The token of a `Name`."""
    return binascii.b2a_base64(_LAYOUT.pack(generation, ticket, nonce), newline=False).translate(_TO_URL_SAFE)


def decoded(token: bytes) -> Name | None:
    """What a token tells; None if it is none."""
    if len(token) != LENGTH:
        return None
    try:
        packed = binascii.a2b_base64(token.translate(_FROM_URL_SAFE))
    except binascii.Error:
        return None
    if len(packed) != _LAYOUT.size:
        return None
    name = Name(*_LAYOUT.unpack(packed))
    return name if name.ticket <= LARGEST_TICKET else None


def decoded_together(tokens: bytes) -> list[Name] | None:
    """The same of some that stand behind each other, each of the length of a token; None if one of them is none."""
    try:
        packed = binascii.a2b_base64(tokens.translate(_FROM_URL_SAFE), strict_mode=True)
    except binascii.Error:
        return None
    if not packed or len(packed) * LENGTH != len(tokens) * _LAYOUT.size:
        return None
    names = list(map(Name._make, _LAYOUT.iter_unpack(packed)))
    return names if max(map(_TICKET, names)) <= LARGEST_TICKET else None


def run_of(tokens: Sequence[str]) -> Run | None:
    """What several tokens, one behind the other, name, if that is a run. They are not read, but compared with those of
    such a run: that takes a third of the time."""
    first = named(tokens[0])
    if len(tokens) == 1 or first is None or first.ticket + len(tokens) > LARGEST_TICKET:
        return None
    run = Run(first.generation, first.nonce, range(first.ticket, first.ticket + len(tokens)))
    return run if texts(run) == list(tokens) else None


def named(token: str) -> Name | None:
    """What a text tells; None if it is no token."""
    try:
        return decoded(token.encode("ascii"))
    except UnicodeEncodeError:
        return None


Columns = Sequence[tuple[int, bytes]]  # characters of many alike: where they are in each, and those of all


def blocks(run: Run, *, most: int = _ALIKE) -> Iterator[tuple[bytes, int, Columns]]:
    """A run in parts whose tokens differ in some characters only: the first token of each, how many they are, and
    those characters. `most`: of as many tickets from one that is divisible by this, which must be a part of 256."""
    generation, nonce, (ticket, end) = run.generation, run.nonce, (run.tickets.start, run.tickets.stop)
    first, second = _COLUMNS[nonce[0] >> 4]
    while ticket < end:
        low = ticket % _ALIKE
        count = min(end - ticket, most - low % most)
        columns = (_MIDDLE_AT, first[low : low + count]), (_MIDDLE_AT + 1, second[low : low + count])
        yield encoded(generation, ticket, nonce), count, columns
        ticket += count


def repeated(template: bytes, count: int, columns: Columns) -> bytearray:
    """So many times these bytes, but for some of them: where they are, and what is there each time."""
    made = bytearray(template) * count
    for at, column in columns:
        made[at :: len(template)] = column
    return made


def joined(run: Run, behind: bytes) -> bytes:
    """The tokens of a run, each with these bytes behind it."""
    return b"".join([repeated(token + behind, count, columns) for token, count, columns in blocks(run)])


def texts(run: Run) -> list[str]:
    """The tokens of a run, each made."""
    made: list[str] = []
    middles = _MIDDLES[run.nonce[0] >> 4]
    for token, count, _ in blocks(run):
        head, tail, low = token[:_MIDDLE_AT].decode(), token[_MIDDLE_END:].decode(), run.tickets[len(made)] % _ALIKE
        made += [f"{head}{middle}{tail}" for middle in middles[low : low + count]]
    return made


class LeaseRuns(Sequence[str]):
    """The leases of runs, in order; none of these is empty. It has no subclasses: whether something is one is asked by
    `type(…) is`."""

    __slots__ = ("_count", "runs")

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self._count = sum(len(run.tickets) for run in runs)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(map(texts, self.runs))

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> LeaseRuns: ...
    def __getitem__(self, at: int | slice) -> str | LeaseRuns:
        if isinstance(at, int):
            one = range(self._count)[at]
            [text] = chain.from_iterable(map(texts, self._part(one, one + 1)))
            return text
        part = range(self._count)[at]
        if part.step == 1:
            return LeaseRuns(list(self._part(part.start, part.stop)))
        return LeaseRuns([run for one in part for run in self._part(one, one + 1)])

    def _part(self, start: int, stop: int) -> Iterator[Run]:
        """What of the runs is between two numbers, counted over all of them."""
        for run in self.runs:
            tickets = run.tickets[max(0, start) : max(0, stop)]
            if tickets:
                yield run._replace(tickets=tickets)
            start, stop = start - len(run.tickets), stop - len(run.tickets)


def all_leases(parts: Sequence[Sequence[str]]) -> Sequence[str]:
    """Those of all parts, in order: as runs, if all are."""
    parts = [part for part in parts if part]
    if len(parts) == 1:
        return parts[0]
    each = [part.runs for part in parts if type(part) is LeaseRuns]
    if len(each) != len(parts):
        return list(chain.from_iterable(parts))
    runs: list[Run] = []
    for run in chain.from_iterable(each):
        if runs and run.follows(before := runs[-1]):
            runs[-1] = before._replace(tickets=range(before.tickets.start, run.tickets.stop))
        else:
            runs.append(run)
    return LeaseRuns(runs)


def step_of(lease: str) -> str:
    """What the leases of one step, and attempt, have in common, and those of no other."""
    return lease[STEP_AT:] or lease


def steps_of(leases: Iterable[str]) -> Counter[str]:
    """How many of them are of which step."""
    if type(leases) is not LeaseRuns:
        return Counter(map(step_of, leases))
    counted: Counter[str] = Counter()
    for run in leases.runs:
        counted[run.step] += len(run.tickets)
    return counted
