"""A batch of bare payloads is known by its size or its bytes, and nothing in a message is overlooked for that."""

from __future__ import annotations

from typing import Any
from unittest.mock import ANY

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from headway.v1.message_pb2 import ON_DUPLICATE_KEEP, Message
from headway.v1.queue_service_pb2 import ProduceRequest, PutRequest
from headwayd.domain.bare import BareMessages
from headwayd.domain.errors import FieldInvalid, TooLarge
from headwayd.domain.footprint import MESSAGE_BYTES
from headwayd.domain.limits import Limits
from headwayd.domain.model import NewMessage
from headwayd.rpc import requests
from headwayd.rpc.bare_messages import BareRequest, bare_payloads, bare_request
from headwayd.rpc.decoding import decoder
from headwayd.rpc.room import Large
from unit.rpc.validating import LIMITS, put

MOST = 4 * 1024 * 1024
# Where a length of a message or of its payload needs a byte more.
EDGES = {edge + more for edge in (1, 126, 128, 16_381, 16_384, 2_097_148, 2_097_152) for more in (-1, 0, 1)}
MESSAGES_TAG = 0x12  # in PutRequest and ProduceRequest: field 2, with a length
UNKNOWN = b"\x98\x06\x01"  # a field that the schema does not have
OTHERS: list[dict[str, Any]] = [
    {},
    {"queue": "q" * 200, "batch": 2**64 - 1, "on_duplicate": ON_DUPLICATE_KEEP},
    {"batch": 300, "on_duplicate": -1},
]


@pytest.mark.parametrize("size", sorted(EDGES))
def test_bare_messages_of_any_size_are_known(size: int) -> None:
    payloads = [b"x" * size, b"", b"x", b"x" * 200, b"x" * size]
    messages = [Message(payload=payload) for payload in payloads]
    for others in OTHERS:
        assert bare_payloads(ProduceRequest(messages=messages, **others), max_bytes=MOST) == payloads
    whole = PutRequest(
        queue="é", messages=messages, wait=Duration(seconds=9, nanos=1), all_or_nothing=True, producer="p" * 150
    )
    assert bare_payloads(whole, max_bytes=MOST) == payloads


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 128, 16_380, 16_381, 16_384])
@pytest.mark.parametrize(
    "fields",
    [
        {"id": "i"},
        {"headers": {"": ""}},
        {"headers": {"k": "v"}},
        {"delay": Duration()},
        {"not_before": Timestamp()},
        {"time_to_live": Duration(seconds=1)},
        None,
    ],
)
def test_whatever_else_one_message_has_is_noticed(size: int, fields: dict[str, Any] | None) -> None:
    payload = b"x" * size
    odd = Message(payload=payload, **fields) if fields is not None else Message.FromString(UNKNOWN)
    for others in OTHERS:
        for at in range(3):
            messages = [Message(payload=payload)] * 2
            messages.insert(at, odd)
            assert bare_payloads(ProduceRequest(messages=messages, **others), max_bytes=MOST) is None


def test_what_the_schema_does_not_know_changes_nothing() -> None:
    """Neither in a message nor beside them."""
    messages = [Message(payload=b"x")] * 9
    beside = PutRequest.FromString(PutRequest(queue="q", messages=messages).SerializeToString() + UNKNOWN)
    within = PutRequest(queue="q", messages=[Message.FromString(UNKNOWN + messages[0].SerializeToString()), *messages])
    for request, count in ((beside, 9), (within, 10)):
        assert list(requests.put_order(request, LIMITS).messages) == [NewMessage(b"x")] * count


def test_a_field_that_is_written_twice_counts_once() -> None:
    """The last one holds, as protobuf has it."""
    raw = PutRequest(queue="first", messages=[Message(payload=b"x")] * 9).SerializeToString()
    order = requests.put_order(PutRequest.FromString(raw + PutRequest(queue="last").SerializeToString()), LIMITS)
    assert (order.queue, list(order.messages)) == ("last", [NewMessage(b"x")] * 9)


@pytest.mark.parametrize("count", range(1, 11))
def test_batches_of_any_length_are_the_same_messages(count: int) -> None:
    payloads = [b"%d" % i for i in range(count)]
    order = put(*[Message(payload=payload) for payload in payloads])
    assert list(order.messages) == [NewMessage(payload) for payload in payloads]
    mixed = put(*[Message(payload=payload) for payload in payloads[1:]], Message(payload=b"x", id="i"))
    assert list(mixed.messages) == [*map(NewMessage, payloads[1:]), NewMessage(b"x", id="i")]


def test_a_long_batch_of_bare_messages_is_kept_as_payloads() -> None:
    assert isinstance(put(*[Message()] * 10).messages, BareMessages)
    request = ProduceRequest(messages=[Message(payload=b"x")] * 10)
    assert isinstance(requests.batch_order(request, "q", LIMITS).messages, BareMessages)


def test_a_message_that_is_too_large_or_wrong_is_told_among_many() -> None:
    most = LIMITS.max_message_bytes
    messages = [Message(payload=b"x" * most)] * 9
    assert len(put(*messages).messages) == 9
    with pytest.raises(TooLarge) as caught:
        put(*messages, Message(payload=b"x" * (most + 1)))
    assert caught.value.metadata == {"field": "messages[9]", "limit": str(most), "size": str(most + 1)}
    with pytest.raises(FieldInvalid) as invalid:
        put(*messages, Message(id="~"))
    assert [one.field for one in invalid.value.violations] == ["messages[9].id"]
    with pytest.raises(TooLarge):
        put(*[Message()] * (LIMITS.max_batch_messages + 1))
    assert Limits().max_message_bytes < MOST


# -- by its bytes -----------------------------------------------------------------------------------------------------


def cut(request: PutRequest | ProduceRequest) -> BareRequest | None:
    return bare_request(request.SerializeToString(), type(request), MESSAGES_TAG)


@pytest.mark.parametrize("size", sorted(EDGES - {0}))
@pytest.mark.parametrize("others", OTHERS)
def test_messages_of_one_size_are_cut_out_of_the_request(size: int, others: dict[str, Any]) -> None:
    payloads = [bytes([number]) * size for number in range(6)]
    whole = ProduceRequest(messages=[Message(payload=payload) for payload in payloads], **others)
    found = cut(whole)
    assert found is not None
    assert found.payloads == payloads
    assert (found.queue, found.batch, found.on_duplicate) == (whole.queue, whole.batch, whole.on_duplicate)
    assert list(found.messages) == list(whole.messages)


def test_the_rest_of_a_request_is_its_own() -> None:
    whole = PutRequest(
        queue="é",
        messages=[Message(payload=b"xyz")] * 9,
        wait=Duration(seconds=9),
        all_or_nothing=True,
        producer="p" * 99,
    )
    found = cut(whole)
    assert found is not None
    assert requests.put_order(found, LIMITS) == requests.put_order(whole, LIMITS)._replace(messages=ANY)
    assert list(requests.put_order(found, LIMITS).messages) == [NewMessage(b"xyz")] * 9
    assert found.HasField("wait")


def test_what_is_wrong_with_many_is_told_as_of_the_request() -> None:
    too_large = [Message(payload=b"x" * (LIMITS.max_message_bytes + 1))] * 6
    too_many = [Message(payload=b"x")] * (LIMITS.max_batch_messages + 1)
    for messages in (too_large, too_many):
        whole = PutRequest(queue="q", messages=messages)
        told = []
        for request in (whole, cut(whole)):
            assert request is not None
            with pytest.raises(TooLarge) as caught:
                requests.put_order(request, LIMITS)
            told.append((caught.value.metadata, caught.value.violations))
        assert told[0] == told[1]


@pytest.mark.parametrize(
    "messages",
    [
        [Message(payload=b"x")] * 5,  # too few to be worth it
        [Message()] * 9,
        [Message(id="i")] * 9,
        [Message(payload=b"x" * 9, id="i")] * 9,
        [Message.FromString(Message(payload=b"x" * 9).SerializeToString() + UNKNOWN)] * 9,
        [Message.FromString(UNKNOWN + Message(payload=b"x" * 9).SerializeToString())] * 9,
        [*[Message(payload=b"x")] * 9, Message(payload=b"xy")],
        [Message(payload=b"xy"), *[Message(payload=b"x")] * 9],
        [*[Message(payload=b"x")] * 9, Message(id="y")],  # as many bytes
        [*[Message(payload=b"x" * 99)] * 9, Message()],
    ],
)
def test_any_other_request_is_left_to_the_schema(messages: list[Message]) -> None:
    for others in OTHERS:
        assert cut(ProduceRequest(messages=messages, **others)) is None


@pytest.mark.parametrize(
    "before",
    [
        b"\x80" * 4_000_000,
        b"\x18" + b"\x80" * 4_000_000,
        b"\x12" + b"\x80" * 4_000_000,
        b"\x18\x01" * 2_000_000,
        b"\x0a" + b"\xff" * 9 + b"\x01",
    ],
)
def test_nothing_that_a_client_may_send_is_looked_at_for_long(before: bytes) -> None:
    """Each takes far more than any test's time if it is read to its end number by number, or as one number."""
    raw = before + ProduceRequest(messages=[Message(payload=b"x" * 99)] * 9).SerializeToString()
    for _ in range(1_000):
        assert bare_request(raw, ProduceRequest, MESSAGES_TAG) is None


def test_more_messages_than_anybody_may_put_are_left_to_the_schema() -> None:
    assert cut(ProduceRequest(messages=[Message(payload=b"x")] * 10_000)) is not None
    assert cut(ProduceRequest(messages=[Message(payload=b"x")] * 10_001)) is None


PIECES = st.sampled_from(
    [
        b"",
        UNKNOWN,
        b"\n\x01q",
        b"\n\x01\xff",
        b"\x18\x05",
        b"\x12\x00",
        b"\x0b\x0c",
        b"\x9a\x06\x01x",
        Message(payload=b"ab").SerializeToString(),
        ProduceRequest(messages=[Message(payload=b"ab")]).SerializeToString(),
        ProduceRequest(messages=[Message(payload=b"ab")] * 7).SerializeToString(),
        ProduceRequest(messages=[Message(payload=b"ab" * 90)] * 6).SerializeToString(),
        ProduceRequest(messages=[Message(payload=b"a", id="i")] * 6).SerializeToString(),
    ]
)


@given(st.lists(PIECES, max_size=6), st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 255)), max_size=3))
def test_whatever_the_bytes_are_it_is_what_the_schema_reads(
    pieces: list[bytes], changes: list[tuple[int, int]]
) -> None:
    raw = bytearray(b"".join(pieces))
    for at, byte in changes:
        if at < len(raw):
            raw[at] = byte
    try:
        whole = ProduceRequest.FromString(bytes(raw))
    except DecodeError:
        assert bare_request(bytes(raw), ProduceRequest, MESSAGES_TAG) is None
        return
    found = bare_request(bytes(raw), ProduceRequest, MESSAGES_TAG)
    if found is not None:
        assert [Message(payload=payload) for payload in found.payloads] == list(whole.messages)
        del whole.messages[:]
        assert found._rest == whole


def test_a_service_reads_large_batches_so() -> None:
    whole = ProduceRequest(queue="q", messages=[Message(payload=b"x" * 300)] * 100)
    read = decoder(ProduceRequest, max_bytes=MOST, counted=True)(whole.SerializeToString())
    assert isinstance(read, Large)
    assert isinstance(read.request, BareRequest)
    mixed = ProduceRequest(queue="q", messages=[*whole.messages, Message(payload=b"x")])
    other = decoder(ProduceRequest, max_bytes=MOST, counted=True)(mixed.SerializeToString())
    assert isinstance(other, Large)
    assert other.request == mixed
    assert other.size - read.size == mixed.ByteSize() - whole.ByteSize() + MESSAGE_BYTES
