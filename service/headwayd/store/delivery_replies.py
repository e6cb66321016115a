"""What scripts answer to those who lease, as the domain's deliveries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from typing import Any

from headwayd.domain.columns import FirstDeliveries
from headwayd.domain.joined import made_id
from headwayd.domain.leases import LeaseRuns, Run, nonce_of
from headwayd.domain.model import OWN_ID_MARK, Delivery
from headwayd.domain.pieces import cut
from headwayd.store import frames, tokens
from headwayd.store.replies import WORTH_COLUMNS, text

_MADE = OWN_ID_MARK.encode()
_ALL = 1 << 30  # messages: more than any step gives
_Row = tuple[int, int, int, bytes, int, bytes]  # ticket, attempt, put at, made id, deadline, element


def deliveries(reply: Sequence[Any], start: int) -> Sequence[Delivery]:
    """The messages of get.lua's reply, which is given from its status on; they begin at `start`."""
    [given] = deliveries_of_each(reply, start, [(_ALL, reply[5])])
    return given


def deliveries_of_each(
    reply: Sequence[Any], start: int, shares: Iterable[tuple[int, bytes]]
) -> Iterator[Sequence[Delivery]]:
    """The same for several who asked, in order: `shares` has how many messages each got, or more where nobody behind
    got any, and the random part of its leases."""
    now, generation, at = int(reply[1]), text(reply[2]), 0
    name = bytes.fromhex(generation)
    first, deadline = reply[start], 0
    is_in_a_piece = first < 0
    tickets, put_at_ms = range(0), list[int]()
    stored: Sequence[bytes] = ()
    if first:
        deadline, put_at_ms = reply[start + 1], _repeated(reply[start + 2])
        stored = _pieces(*reply[start + 3 :]) if is_in_a_piece else reply[start + 3 :]
        tickets = range(abs(first), abs(first) + len(stored))
    fields = iter(() if first else reply[start + 1 :])
    each: Iterator[_Row] = zip(fields, fields, fields, fields, fields, fields, strict=True)
    for most, random in shares:
        part = slice(at, at + most)
        elements = stored[part]
        is_worth_columns = len(stored) - at >= WORTH_COLUMNS <= most
        at += most
        columns = _columns(elements, put_at_ms[part], is_bare=is_in_a_piece) if is_worth_columns else None
        if columns is not None:
            yield FirstDeliveries(
                generation=generation,
                tickets=tickets[part],
                payloads=columns.payloads,
                leases=LeaseRuns([Run(name, nonce_of(random, FirstDeliveries.attempt), tickets[part])]),
                put_at_ms=columns.put_at_ms,
                lease_expires_at_ms=deadline,
                now_ms=now,
                given_ids=columns.ids,
                headers=columns.headers,
            )
        elif first:
            alike = repeat(1), put_at_ms[part], repeat(b""), repeat(deadline)
            yield _delivered(reply, random, zip(tickets[part], *alike, elements, strict=False))
        else:
            yield _delivered(reply, random, islice(each, most))


def _columns(elements: Sequence[bytes], put_at_ms: Sequence[int], *, is_bare: bool) -> frames.Columns | None:
    """The elements, which were put then as far as they do not tell it themselves. None where a foreign client gave one
    of them an id that is no text, or is spelled as only those that are made: these are looked at one by one."""
    if is_bare or True not in map(bytes.startswith, elements, repeat(frames.MAGIC)):
        return frames.Columns(elements, (), (), put_at_ms)
    columns = frames.read_all(elements)
    if True in map(bytes.startswith, columns.ids, repeat(_MADE)) or not _are_texts(columns.ids):
        return None
    own = [own or told for own, told in zip(columns.put_at_ms, put_at_ms, strict=True)]  # of a frame its own counts
    return columns._replace(put_at_ms=own)


def _are_texts(raw: Sequence[bytes]) -> bool:
    try:
        b"\n".join(raw).decode()  # what is cut off in one is not completed by the next
    except UnicodeDecodeError:
        return False
    return True


def _pieces(count: int, size: int, packed: bytes) -> Sequence[bytes]:
    """The elements of an array in MessagePack, each of so many bytes: behind the head of the array each has a head of
    its own, all of one length."""
    before = len(packed) // count - size  # that of the array is shorter than two of theirs
    return cut(packed, len(packed) - count * (before + size), count=count, size=size, before=before)


def _delivered(reply: Sequence[Any], random: bytes, rows: Iterable[_Row]) -> list[Delivery]:
    now, generation = int(reply[1]), text(reply[2])
    new_token = tokens.encoder(reply[2])
    given: list[Delivery] = []
    for ticket, attempt, put_at, kept_id, deadline, element in rows:
        payload, given_id, headers = element, "", b""
        if element[:4] == frames.MAGIC:
            frame = frames.read(element)
            payload, given_id, headers = frame.payload, frame.id, frame.headers
            put_at = frame.put_at_ms or put_at  # noqa: PLW2901 - of a frame its own counts
        given.append(
            Delivery(
                given_id or text(kept_id) or made_id(generation, ticket),
                payload,
                headers,
                new_token(ticket, random, attempt),
                deadline,
                attempt,
                ticket,
                put_at or None,
                max(0, now - put_at) if put_at else None,
            )
        )
    return given


def _repeated(runs: bytes) -> list[int]:
    """From 'count value count value …' to the values, each as often as its count says."""
    numbers = map(int, runs.split())
    values: list[int] = []
    for count, value in zip(numbers, numbers, strict=True):
        values += [value] * count
    return values
