"""Runs of leases found in the bytes of a request: what is found is what the request says, and nothing else is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from headway.v1.queue_service_pb2 import AckRequest, ConsumeRequest, ExtendRequest, GetRequest
from headwayd.domain.leases import LENGTH, LeaseRuns
from headwayd.rpc.lease_runs import LEAST_LEASES, cut_of
from unit.runs import run_tokens

GENERATION, RANDOM = b"0123456789abcdef", bytes(range(16))
ACK, GET, CONSUME = (cast("Callable[[bytes], Any]", cut_of(kind)) for kind in (AckRequest, GetRequest, ConsumeRequest))


def run(count: int, first: int = 100, *, random: bytes = RANDOM, attempt: int = 1) -> list[str]:
    return run_tokens(GENERATION, first, count, random, attempt)


@st.composite
def leases(draw: st.DrawFn) -> list[str]:
    """Mostly runs, with one among them that is another, or twice there, or somewhere else."""
    parts = draw(
        st.lists(
            st.tuples(st.integers(0, 2**53 - 300), st.integers(1, 300), st.binary(min_size=16, max_size=16)), max_size=4
        )
    )
    some = [lease for first, count, random in parts for lease in run(count, first, random=random)]
    if draw(st.booleans()) and some:
        at = draw(st.integers(0, len(some) - 1))
        match draw(st.sampled_from(["other", "twice", "moved", "odd"])):
            case "other":
                place = draw(st.integers(0, LENGTH - 1))
                some[at] = some[at][:place] + draw(st.sampled_from("Aa_-=*")) + some[at][place + 1 :]
            case "twice":
                some.insert(at, some[draw(st.integers(0, len(some) - 1))])
            case "moved":
                some.append(some.pop(at))
            case _:
                some[at] = draw(st.text(max_size=60))
    return some


def is_read_alike(found: Any, request: Any, field: str) -> None:
    assert type(getattr(found, field)) is LeaseRuns
    assert list(getattr(found, field)) == list(getattr(request, field))
    for other in request.DESCRIPTOR.fields:
        if other.name != field:
            assert getattr(found, other.name) == getattr(request, other.name)


@given(leases(), st.sampled_from(["", "q", "queue" * 40]), st.binary(max_size=3))
def test_what_is_found_is_what_was_asked(named: list[str], queue: str, result: bytes) -> None:
    ack = AckRequest(queue=queue, leases=named, result=result)
    get = GetRequest(queue=queue, max_messages=9, ack=named, attempt_id=queue)
    if (found := ACK(ack.SerializeToString())) is not None:
        is_read_alike(found, ack, "leases")
    if (found := GET(get.SerializeToString())) is not None:
        is_read_alike(found, get, "ack")
        assert not found.HasField("wait")
    if (found := CONSUME(ConsumeRequest(ack=ack).SerializeToString())) is not None:
        assert (found.WhichOneof("step"), found.HasField("ack"), found.HasField("start")) == ("ack", True, False)
        is_read_alike(found.ack, ack, "leases")


@given(st.lists(st.tuples(st.integers(0, 2**53 - 300), st.integers(LEAST_LEASES, 300)), min_size=1, max_size=3))
def test_runs_are_found(parts: list[tuple[int, int]]) -> None:
    named = [
        lease for number, (first, count) in enumerate(parts) for lease in run(count, first, random=bytes([number]) * 16)
    ]
    for cut, request in (
        (ACK, AckRequest(queue="q", leases=named, result=b"x")),
        (GET, GetRequest(queue="q", ack=named, attempt_id="x")),
        (CONSUME, ConsumeRequest(ack=AckRequest(leases=named))),
    ):
        assert cut(request.SerializeToString()) is not None


@pytest.mark.parametrize(
    "named",
    [
        run(LEAST_LEASES - 1),
        run(20)[::-1],
        run(20)[::2],
        [*run(10), "é" * 24, *run(10, 110)],
        [*run(10), *run(1, 5)] * 3,  # more than one run for each eight
        [lease for first in range(0, 9_000, 100) for lease in run(9, first)],  # more than are looked for
        run(20, 2**53 - 10),
        [lease.upper() for lease in run(9)],
        ["A" * 300] * 9,
        [""] * 400,
    ],
)
def test_what_is_no_run_is_left_to_the_schema(named: list[str]) -> None:
    assert ACK(AckRequest(queue="q", leases=named).SerializeToString()) is None
    assert CONSUME(ConsumeRequest(ack=AckRequest(leases=named)).SerializeToString()) is None


def test_one_that_is_another_hides_in_no_run() -> None:
    whole = run(300)
    for at in range(len(whole)):
        for place in (0, 19, 20, 21, 22, LENGTH - 1):
            other = whole[at][:place] + ("B" if whole[at][place] != "B" else "C") + whole[at][place + 1 :]
            named = [*whole[:at], other, *whole[at + 1 :]]
            found = ACK(AckRequest(leases=named).SerializeToString())
            assert found is None or list(found.leases) == named


@pytest.mark.parametrize("odd", [b"\x12\x00", b"\x12\x2f", b"\x12\x31", b"\x1a\x30", b"\x0a\x30", b"\x00\x30"])
@pytest.mark.parametrize("which", [0, 1, 9, 10, 18, 19])
def test_what_stands_before_a_lease_is_looked_at(which: int, odd: bytes) -> None:
    """Also before the first one of a run."""
    raw = AckRequest(leases=[*run(10), *run(10, 500)]).SerializeToString()
    at = which * (LENGTH + 2)
    raw = raw[:at] + odd + raw[at + 2 :]
    found = ACK(raw)
    try:
        request = AckRequest.FromString(raw)
    except DecodeError:
        assert found is None
    else:
        assert found is None or list(found.leases) == list(request.leases)


def test_only_requests_that_ack_are_looked_at() -> None:
    assert cut_of(ExtendRequest) is None
    whole = run(9)
    for request in (
        ConsumeRequest(extend=ExtendRequest(leases=whole)),
        ConsumeRequest(ack=AckRequest(queue="q" * 500)),
        ConsumeRequest(),
    ):
        assert CONSUME(request.SerializeToString()) is None


@given(st.integers(0), st.binary(min_size=1, max_size=3), st.booleans())
def test_bytes_that_are_no_request_are_left_to_the_schema(at: int, other: bytes, is_cut: bool) -> None:
    """Whatever is found in broken bytes is what the schema finds in them."""
    raw = ConsumeRequest(ack=AckRequest(queue="q", leases=run(20), result=b"x")).SerializeToString()
    at %= len(raw)
    raw = raw[:at] if is_cut else raw[:at] + other + raw[at + len(other) :]
    if (found := CONSUME(raw)) is not None:
        try:
            request = ConsumeRequest.FromString(raw)
        except DecodeError:
            pytest.fail("what is no request was taken for one")
        is_read_alike(found.ack, request.ack, "leases")
