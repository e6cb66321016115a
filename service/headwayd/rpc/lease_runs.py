"""Finds out that the leases a request names are runs of leases that steps gave, by the request's bytes: no text is made
of any of them.

Tokens of a run are known from its first one. So that is read, all are made, and what was sent is compared with them: a
lease that is another one, or none, is in no run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtoMessage

from headway.v1 import queue_service_pb2
from headwayd.domain.leases import LARGEST_TICKET, LENGTH, LeaseRuns, Name, Run, decoded, encoded, joined
from headwayd.rpc.wire_format import first_field, number_at, tag_of

LEAST_LEASES = 8  # fewer are cheaper to look at one by one, and so is more than one run for each of so many
_MOST_RUNS = 64  # so that a request made to be dear is not
_STRIDE = LENGTH + 2  # a tag and a length before each
_ACK = tag_of(queue_service_pb2.ConsumeRequest.DESCRIPTOR, "ack")[0]


class RunsRequest:
    """A request whose leases, in the field of this name, are runs. Everything else of it is read as of the request
    itself."""

    __slots__ = ("_field", "_leases", "_rest")

    def __init__(self, rest: ProtoMessage, field: str, leases: LeaseRuns) -> None:
        self._rest = rest
        self._field = field
        self._leases = leases

    def __getattr__(self, name: str) -> Any:
        return self._leases if name == self._field else getattr(self._rest, name)


class AckStep:
    """A step of a consumer's stream that acks runs."""

    __slots__ = ("ack",)

    def __init__(self, ack: RunsRequest) -> None:
        self.ack = ack

    def WhichOneof(self, _of: str) -> str:  # noqa: N802 - as of a message
        """Which step it is."""
        return "ack"

    def HasField(self, name: str) -> bool:  # noqa: N802 - as of a message
        """Whether it is this step."""
        return name == "ack"


Cut = Callable[[bytes], RunsRequest | AckStep | None]


def cut_of(kind: type[ProtoMessage]) -> Cut | None:
    """What finds the runs of leases in the bytes of such requests, and returns None where they name other leases, or
    are none; None for requests that do not ack."""
    if kind is queue_service_pb2.ConsumeRequest:
        of_ack = _of_field(queue_service_pb2.AckRequest, "leases")
        return lambda raw: _ack_step(raw, of_ack)
    if kind is queue_service_pb2.AckRequest:
        return _of_field(kind, "leases")
    return _of_field(kind, "ack") if kind is queue_service_pb2.GetRequest else None


def _ack_step(raw: bytes, of_ack: Callable[[bytes], RunsRequest | None]) -> AckStep | None:
    if len(raw) < LEAST_LEASES * _STRIDE or raw[0] != _ACK:
        return None
    try:
        length, at = number_at(raw, 1)
    except (IndexError, ValueError):
        return None
    ack = of_ack(raw[at:]) if at + length == len(raw) else None
    return None if ack is None else AckStep(ack)


def _of_field(kind: type[ProtoMessage], field: str) -> Callable[[bytes], RunsRequest | None]:
    tag = tag_of(cast(Descriptor, kind.DESCRIPTOR), field)
    before = tag + bytes([LENGTH])

    def cut(raw: bytes) -> RunsRequest | None:
        if len(raw) < LEAST_LEASES * _STRIDE:
            return None
        try:
            start = first_field(raw, tag[0])
        except (IndexError, ValueError):
            return None
        column = raw[start::_STRIDE]
        count = min(len(column) - len(column.lstrip(tag)), (len(raw) - start) // _STRIDE)
        end = start + count * _STRIDE
        if count < LEAST_LEASES or (leases := _runs(raw, start, end, before)) is None:
            return None
        try:
            rest = kind.FromString(raw[:start] + raw[end:])
        except DecodeError:
            return None
        return None if getattr(rest, field) else RunsRequest(rest, field, leases)

    return cut


def _runs(raw: bytes, start: int, end: int, before: bytes) -> LeaseRuns | None:
    """Those whose tokens stand from `start` to `end`, with these bytes before each."""
    runs: list[Run] = []
    most = min((end - start) // _STRIDE // LEAST_LEASES, _MOST_RUNS)
    while start < end:
        first = decoded(raw[start + len(before) : start + _STRIDE])
        if first is None or len(runs) == most or not raw.startswith(before, start):
            return None
        run = _longest(raw, start, (end - start) // _STRIDE, first)
        stop = start + len(run.tickets) * _STRIDE
        is_sent = raw[start + len(before) : stop] + before == joined(run, before)
        if not is_sent or run.tickets[-1] > LARGEST_TICKET:
            return None
        runs.append(run)
        start = stop
    return LeaseRuns(runs)


def _longest(raw: bytes, start: int, most: int, first: Name) -> Run:
    """The run that begins there, of at most so many; if it is one, which only its last token was looked at for."""

    def is_behind(count: int) -> bool:
        at = start + count * _STRIDE
        return raw[at - LENGTH : at] != encoded(first.generation, first.ticket + count - 1, first.nonce)

    count = most if not is_behind(most) else bisect_left(range(1, most), x=True, key=is_behind)
    return Run(first.generation, first.nonce, range(first.ticket, first.ticket + max(count, 1)))
