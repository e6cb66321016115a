"""A batch of bare payloads is known by its size alone, and nothing in a message is overlooked for that."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from headway.v1.message_pb2 import ON_DUPLICATE_KEEP, Message
from headway.v1.queue_service_pb2 import ProduceRequest, PutRequest
from headwayd.domain.bare import BareMessages
from headwayd.domain.errors import FieldInvalid, TooLarge
from headwayd.domain.limits import Limits
from headwayd.domain.model import NewMessage
from headwayd.rpc import requests
from headwayd.rpc.bare_messages import bare_payloads
from unit.rpc.validating import LIMITS, put

MOST = 4 * 1024 * 1024
# Where a length of a message or of its payload needs a byte more.
EDGES = {edge + more for edge in (1, 126, 128, 16_381, 16_384, 2_097_148, 2_097_152) for more in (-1, 0, 1)}
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
