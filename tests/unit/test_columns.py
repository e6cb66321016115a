"""What is kept by columns is, to who looks at it one by one, what it would be made one by one; and on the wire, too."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pytest
from google.protobuf.message import Message as ProtoMessage
from hypothesis import given
from hypothesis import strategies as st

from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Message
from headwayd.domain.columns import FirstAcks, FirstDeliveries, last_expiry_ms, leases_of
from headwayd.domain.consuming import Credit, ToldConsumer
from headwayd.domain.model import Delivery, Settled, Settlement
from headwayd.domain.standing import GetOutcome
from headwayd.engine.consuming.outstanding import Outstanding, size_of
from headwayd.rpc.conversion import add_deliveries, add_results, consume_response, get_response
from headwayd.rpc.encoded import Encoded, as_message, to_bytes
from headwayd.store import delivery_replies, frames, replies, tokens
from unit.runs import run_tokens

GENERATION, NOW, RANDOM = b"0123456789abcdef", 1_763_800_000_000, bytes(range(16))
DEADLINE = NOW + 30_000
Row = tuple[int, int, int, bytes, int, bytes]  # ticket, attempt, put at, made id, deadline, element
PAYLOADS = st.one_of(st.binary(max_size=3), st.sampled_from([b"%d%%", b"x" * 200, b"x" * 20_000]))
PUT_TIMES = st.sampled_from([0, NOW, NOW - 99, NOW + 1])


def frame(given_id: bytes, headers: bytes, payload: bytes, put_at_ms: int) -> bytes:
    """As docs/storage.md has it."""
    total = 24 + len(given_id) + len(headers) + len(payload)
    header = frames.MAGIC + struct.pack(">QHII", put_at_ms, len(given_id), len(headers), total)
    check = sum(weight * byte for weight, byte in enumerate(header, start=1)) % 65521
    return header + check.to_bytes(2) + given_id + headers + payload


def encoded(headers: dict[str, str]) -> bytes:
    """As they are put."""
    return Message(headers=headers).SerializeToString(deterministic=True)


def cut_short(element: bytes) -> bytes:
    """What begins as a frame and is none."""
    return element[:-1]


IDS = st.one_of(
    st.text(max_size=9).filter(lambda text: not text.startswith("~")).map(str.encode),
    st.sampled_from([0, 127, 128, 65_535]).map(lambda length: b"x" * length),
)
HEADERS = st.dictionaries(
    st.one_of(st.text(max_size=2), st.sampled_from(["traceparent", "z" * 130])),
    st.one_of(st.text(max_size=2), st.just("v" * 300)),
    max_size=3,
).map(encoded)
FRAMES = st.builds(frame, IDS, HEADERS, PAYLOADS, PUT_TIMES)
ELEMENTS = st.one_of(PAYLOADS, FRAMES, FRAMES.map(cut_short), PAYLOADS.map(lambda payload: frames.MAGIC + payload))
# What only a foreign client puts: ids that are no texts, or spelled as made ones; headers that are none, that are read
# as an id or a payload, or that are written in another way than Headway's; and other fields.
ODD_IDS = [b"\xff", b"\xc3", b"\xa9", b"~", b"~0123456789abcdef-7", b"\xed\xa0\x80"]
ODD_HEADERS = [
    *(b"\xff\xff", b"\x1a\x05ab", b"\x1a\x05\n\x01\xff\x12\x00", b"\x1b"),
    *(b"\n\x01x", b"\x12\x01x", b"\n\x00", b"\x12\x00", b"\x1a\x02\x12\x00\n\x00", b"\x1a\x00"),
    encoded({"b": "1"}) + encoded({"a": "2"}),
    encoded({"a": "1"}) + encoded({"a": "2"}),
]
ODD_FRAMES = st.builds(
    frame,
    st.one_of(IDS, st.sampled_from(ODD_IDS)),
    st.one_of(HEADERS, st.sampled_from([*ODD_HEADERS, b"2\x00", b"*\x02\x08\x01", b"\xa0\x06\x01"])),
    PAYLOADS,
    st.one_of(PUT_TIMES, st.just(2**64 - 1)),
)


@st.composite
def lines(draw: st.DrawFn, elements: st.SearchStrategy[bytes] = ELEMENTS) -> list[Row]:
    """Messages that follow each other, leased for the first time."""
    first = draw(st.one_of(st.integers(1, 2**53 - 30), st.integers(1, 2**15)))
    put = draw(st.lists(st.tuples(PUT_TIMES, elements), min_size=8, max_size=20))
    return [(first + i, 1, put_at, b"", DEADLINE, element) for i, (put_at, element) in enumerate(put)]


def told_by(rows: Sequence[Row]) -> list[Any]:
    """As get.lua tells of them from its status on, if they follow each other."""
    runs = [(str(len(list(run))), str(put_at)) for put_at, run in groupby(row[2] for row in rows)]
    times = " ".join(word for run in runs for word in run).encode()
    return [b"OK", b"%d" % NOW, GENERATION, b"", b"", RANDOM, rows[0][0], DEADLINE, times, *(row[5] for row in rows)]


def leased(rows: Sequence[Row]) -> Sequence[Delivery]:
    return delivery_replies.deliveries(told_by(rows), 6)


def told_one_by_one(rows: Sequence[Row]) -> list[Any]:
    """The same as get.lua tells of any."""
    return [b"OK", b"%d" % NOW, GENERATION, b"", b"", RANDOM, 0, *(value for row in rows for value in row)]


@pytest.mark.parametrize("count", [8, 15, 16, 300])
@pytest.mark.parametrize("size", [0, 1, 31, 32, 255, 256, 2_048])
def test_deliveries_in_one_piece_are_those_made_one_by_one(count: int, size: int) -> None:
    rows = [(*row[:5], (b"%05d" % row[0] * size)[:size]) for row in consecutive(count, 7)]
    heads = {0: b"\xa0", 1: b"\xa1", 31: b"\xbf", 32: b"\xd9\x20", 255: b"\xd9\xff"}  # as MessagePack has them
    head = heads.get(size, b"\xda" + size.to_bytes(2))
    packed = (bytes([0x90 | count]) if count < 16 else b"\xdc" + count.to_bytes(2)) + b"".join(
        head + row[5] for row in rows
    )
    told = told_by(rows)
    in_a_piece = delivery_replies.deliveries([*told[:6], -told[6], *told[7:9], count, size, packed], 6)
    assert isinstance(in_a_piece, FirstDeliveries)
    assert list(in_a_piece) == one_by_one(rows)


def one_by_one(rows: Sequence[Row]) -> Sequence[Delivery]:
    return delivery_replies.deliveries(told_one_by_one(rows), 6)


def consecutive(count: int, first: int = 1) -> list[Row]:
    return [(first + i, 1, NOW - 100, b"", DEADLINE, b"body %d" % i) for i in range(count)]


@given(lines())
def test_deliveries_are_those_made_one_by_one(rows: list[Row]) -> None:
    columns = leased(rows)
    assert isinstance(columns, FirstDeliveries)
    assert list(columns) == one_by_one(rows)
    assert [columns[i] for i in range(len(columns))] == one_by_one(rows)
    assert list(columns[2:5]) == one_by_one(rows)[2:5]
    assert list(leases_of(columns)) == [delivery.lease for delivery in columns]
    assert last_expiry_ms(columns) == last_expiry_ms(list(columns)) == DEADLINE


@given(lines())
def test_what_each_takes_of_a_credit_is_the_same(rows: list[Row]) -> None:
    columns = leased(rows)
    assert isinstance(columns, FirstDeliveries)
    assert columns.sizes == [size_of(delivery) for delivery in one_by_one(rows)]


def test_a_frame_among_them_is_in_the_columns() -> None:
    rows = consecutive(9)
    headers = encoded({"k": "v"})
    rows[3] = (*rows[3][:5], frame(b"order-1", headers, b"framed", NOW - 7))
    rows[5] = (*rows[5][:5], frames.MAGIC + rows[5][5])
    columns = leased(rows)
    assert isinstance(columns, FirstDeliveries)
    assert list(columns) == one_by_one(rows)
    assert columns[3][:3] == ("order-1", b"framed", headers)
    assert columns[-1].id == "~0123456789abcdef-9"
    assert columns[3].put_at_ms == NOW - 7


@pytest.mark.parametrize("odd", ODD_IDS)
def test_an_id_that_no_caller_gives_makes_no_columns(odd: bytes) -> None:
    rows = consecutive(9)
    rows[3] = (*rows[3][:5], frame(odd, b"", b"framed", NOW))
    columns = leased(rows)
    assert not isinstance(columns, FirstDeliveries)
    assert list(columns) == one_by_one(rows)


@given(lines(ODD_FRAMES))
def test_what_foreign_clients_framed_is_the_same_on_the_wire(rows: list[Row]) -> None:
    given = leased(rows)
    assert list(given) == one_by_one(rows)
    by_columns = consume_response(ToldConsumer(deliveries=given))
    assert pb.ConsumeResponse.FromString(to_bytes(by_columns)) == consume_response(
        ToldConsumer(deliveries=one_by_one(rows))
    )


@pytest.mark.parametrize("odd", ODD_HEADERS)
def test_headers_that_are_not_as_they_are_put_are_not_sent_as_they_are(odd: bytes) -> None:
    rows = consecutive(9)
    rows[3] = (*rows[3][:5], frame(b"order-1", odd, b"framed", NOW))
    reply = consume_response(ToldConsumer(deliveries=leased(rows)))
    assert isinstance(reply, pb.ConsumeResponse)
    message = reply.deliveries[3].message
    assert (message.id, message.payload) == ("order-1", b"framed")


@pytest.mark.parametrize("mosts", [[8, 9, 8], [30, 2], [3, 8, 20, 4]])
def test_each_of_several_callers_has_its_share_and_its_secret(mosts: list[int]) -> None:
    rows = consecutive(20)
    shares = [(most, os.urandom(tokens.RANDOM_BYTES)) for most in mosts]
    at = 0
    told = (told_by(rows), told_one_by_one(rows))
    given = zip(*(delivery_replies.deliveries_of_each(one, 6, shares) for one in told), strict=True)
    for (most, random), (columns, in_turn) in zip(shares, given, strict=True):
        assert list(columns) == list(in_turn)
        assert isinstance(columns, FirstDeliveries) == (len(columns) >= 8)
        assert [delivery.ticket for delivery in columns] == [row[0] for row in rows[at : at + most]]
        assert {tokens.decode(delivery.lease).nonce[: tokens.RANDOM_BYTES] for delivery in columns} <= {random}
        at += most


def test_nothing_was_leased() -> None:
    assert not one_by_one([])


@given(lines())
def test_deliveries_by_columns_are_the_same_on_the_wire(rows: list[Row]) -> None:
    columns = leased(rows)
    for make in (pb.GetResponse, pb.ConsumeResponse, pb.Granted):
        at_once, in_turn = make(), make()
        add_deliveries(at_once, columns)
        add_deliveries(in_turn, list(columns))
        assert at_once.SerializeToString(deterministic=True) == in_turn.SerializeToString(deterministic=True)


@given(lines(), st.booleans(), st.booleans())
def test_replies_in_bytes_are_those_of_the_schema(rows: list[Row], has_given: bool, has_settled: bool) -> None:
    given: Sequence[Delivery] = leased(rows) if has_given else ()
    settled = FirstAcks(["a" * 48] * 9 if has_settled else [])
    for by_columns, in_turn in (
        (get_response(GetOutcome(given, settled)), get_response(GetOutcome(list(given), list(settled)))),
        (
            consume_response(ToldConsumer(deliveries=given, settled=settled)),
            consume_response(ToldConsumer(deliveries=list(given), settled=list(settled))),
        ),
    ):
        assert isinstance(in_turn, ProtoMessage)
        if isinstance(by_columns, Encoded):
            assert to_bytes(by_columns) == in_turn.SerializeToString(deterministic=True)  # as headers are put
        assert as_message(by_columns) == in_turn


def test_what_is_more_than_columns_is_told_all_the_same() -> None:
    given, settled = leased(consecutive(9)), [Settlement("a", Settled.STALE)]
    reply = consume_response(ToldConsumer(deliveries=given, settled=settled, is_drained=True))
    assert isinstance(reply, pb.ConsumeResponse)
    assert (len(reply.deliveries), len(reply.settled), reply.drained) == (9, 1, True)
    assert isinstance(consume_response(ToldConsumer(deliveries=given)), Encoded)
    assert isinstance(consume_response(ToldConsumer()), pb.ConsumeResponse)


@pytest.mark.parametrize("first", [1, 92, 120, 990, 9_990, 16_380, 2**14 * 7 - 3, 10**12, 2**53 - 20])
def test_tickets_of_any_length_are_the_same_on_the_wire(first: int) -> None:
    columns = leased(consecutive(20, first))
    response = pb.ConsumeResponse()
    add_deliveries(response, columns)
    assert [delivery.ticket for delivery in response.deliveries] == list(range(first, first + 20))
    assert [delivery.message.id for delivery in response.deliveries] == [one.id for one in columns]


def test_of_columns_a_caller_may_have_no_share() -> None:
    response = pb.GetResponse()
    add_deliveries(response, leased(consecutive(9))[:0])
    add_results(response, "settled", FirstAcks(["a"] * 9)[9:])
    assert response == pb.GetResponse()


def test_acks_are_those_made_one_by_one_and_the_same_on_the_wire() -> None:
    leases = [delivery.lease for delivery in one_by_one(consecutive(9))]
    columns, _ = replies.acked(leases, [0], 0)
    in_turn = [Settlement(lease, Settled.ACKED) for lease in leases]
    assert isinstance(columns, FirstAcks)
    assert list(columns) == in_turn
    assert [columns[i] for i in range(9)] == in_turn
    assert list(columns[3:]) == in_turn[3:]
    for make, name in ((pb.GetResponse, "settled"), (pb.AckResponse, "results")):
        response, other = make(), make()
        add_results(response, name, columns)
        add_results(other, name, in_turn)
        assert response.SerializeToString() == other.SerializeToString()


def test_a_settlement_that_is_not_like_the_others_makes_no_columns() -> None:
    leases = [str(i) for i in range(9)]
    settled, behind = replies.acked(leases, [b"", 2, 3, b"STALE", 0, 9, b"ACKED", 2, b"next"], 1)
    assert behind == 8
    expected = [Settlement(lease, Settled.ACKED) for lease in leases]
    expected[2] = Settlement("2", Settled.STALE)
    expected[8] = Settlement("8", Settled.ACKED, 2)
    assert list(settled) == expected


@pytest.mark.parametrize("odd", ["", "é" * 48, "x" * 300, "short"])
def test_acks_of_leases_of_any_length_are_the_same_on_the_wire(odd: str) -> None:
    acks = FirstAcks(["a" * 48, odd, "b" * 48])
    for leases in (acks, FirstAcks([odd])):
        response, other = pb.AckResponse(), pb.AckResponse()
        add_results(response, "results", leases)
        add_results(other, "results", list(leases))
        assert response == other


def named_by(words: Sequence[bytes | int]) -> list[tuple[bytes | int, bytes | int, bytes | int]]:
    """As the scripts read them: generation, ticket and nonce of each lease."""
    named: list[tuple[bytes | int, bytes | int, bytes | int]] = []
    rest = iter(words)
    for generation in rest:
        nonce, count = next(rest), int(next(rest))
        if count < 0:
            first = int(next(rest))
            named += [(generation, first + n, nonce) for n in range(-count)]
        else:
            named += [(generation, next(rest), nonce) for _ in range(count)]
    return named


@given(
    st.lists(
        st.one_of(
            st.text(max_size=60),
            st.tuples(st.binary(min_size=8, max_size=8), st.integers(0, 2**64 - 1)).map(
                lambda named: tokens.encoder(named[0].hex().encode())(named[1], RANDOM, 1)
            ),
        )
    )
)
def test_tokens_of_many_are_those_of_each(leases: list[str]) -> None:
    assert named_by(tokens.decode_all(leases)) == [tokens.decode(lease) for lease in leases]


def test_leases_of_one_step_are_named_together() -> None:
    leases = run_tokens(GENERATION, 4, 3, RANDOM, 1)
    nonce = RANDOM + (1).to_bytes(4)
    assert tokens.decode_all(leases) == [GENERATION, nonce, -3, 4]  # they follow each other
    assert tokens.decode_all([leases[0], leases[2], leases[1]]) == [GENERATION, nonce, 3, 4, 6, 5]
    assert tokens.decode_all([leases[0], "none", *leases[1:]]) == [
        *(GENERATION, nonce, 1, 4),
        *(b"", b"", 1, 0),
        *(GENERATION, nonce, -2, 5),
    ]


@given(st.integers(0, 2**53 - 600), st.integers(0, 600), st.binary(min_size=16, max_size=16), st.integers(1, 2**32 - 1))
def test_tokens_made_at_once_are_those_made_one_by_one(first: int, count: int, random: bytes, attempt: int) -> None:
    encode = tokens.encoder(GENERATION)
    in_turn = [encode(ticket, random, attempt) for ticket in range(first, first + count)]
    assert run_tokens(GENERATION, first, count, random, attempt) == in_turn


@given(
    st.lists(
        st.tuples(st.integers(0, 2**53 - 300), st.integers(1, 250), st.sampled_from([RANDOM, RANDOM[::-1]])), max_size=6
    ),
    st.one_of(st.none(), st.integers(0)),
)
def test_tokens_of_many_steps_are_those_of_each(steps: list[tuple[int, int, bytes]], odd: int | None) -> None:
    leases = [lease for first, count, random in steps for lease in run_tokens(GENERATION, first, count, random, 1)]
    if odd is not None and leases:  # one has a character that is another, or none of theirs
        at = odd % len(leases)
        leases[at] = leases[at][: odd % 48] + "A*"[odd % 2] + leases[at][odd % 48 + 1 :]
    assert named_by(tokens.decode_all(leases)) == [tokens.decode(lease) for lease in leases]


def test_what_is_outstanding_is_the_same_by_columns() -> None:
    columns = leased(consecutive(12))
    at_once, in_turn = Outstanding(Credit(20, 500)), Outstanding(Credit(20, 500))
    at_once.add(columns, 5.0)
    at_once.add(columns[3:], 7.0)  # the same leases again
    in_turn.add(list(columns), 5.0)
    in_turn.add(list(columns[3:]), 7.0)
    some = [*leases_of(columns)[2:6], "unknown"]
    assert at_once.leases == in_turn.leases
    assert at_once.room() == in_turn.room()
    assert at_once.room(some) == in_turn.room(some)
    at_once.end_all(some)
    for lease in some:
        in_turn.end(lease)
    assert (at_once.room(), at_once.freed, len(at_once)) == (in_turn.room(), in_turn.freed, len(in_turn))
    for held in (at_once, in_turn):
        held.lapse(6.0)
        held.end_all([leases_of(columns)[0], leases_of(columns)[4]])  # one has lapsed, one is settled already
    assert (at_once.room(), at_once.freed, at_once.leases) == (in_turn.room(), in_turn.freed, in_turn.leases)
