"""The ranges of Put, at min−1, min, max, max+1."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from headway.v1.message_pb2 import Message
from headway.v1.queue_service_pb2 import DelayRequest, PutRequest
from headwayd.domain.errors import FieldInvalid, InvalidInput, TooLarge
from headwayd.domain.limits import DAY_MS, Limits
from headwayd.domain.model import NewMessage, OnDuplicate
from headwayd.rpc import requests
from unit.rpc.validating import LIMITS, NEGATIVE, put, refused


def put_one(**fields: Any) -> NewMessage:
    (message,) = put(Message(**fields)).messages
    assert isinstance(message, NewMessage)
    return message


def test_put_takes_one_message_up_to_the_batch_limit() -> None:
    for count in (1, 9, 10):
        assert len(put(*[Message()] * count).messages) == count
    assert refused(put) == {"messages": "is empty"}


def test_put_of_more_than_the_batch_limit_is_too_large() -> None:
    with pytest.raises(TooLarge) as caught:
        put(*[Message(id="~")] * 11)
    assert caught.value.metadata == {"field": "messages", "limit": "10", "size": "11"}
    assert len(caught.value.violations) == 1


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, {}),
        ({"id": "i"}, {"id": "i"}),
        ({"headers": {"": ""}}, None),
        ({"headers": {"k": ""}}, {"headers": Message(headers={"k": ""}).SerializeToString()}),
        ({"delay": Duration()}, {}),
        ({"delay": Duration(seconds=1)}, {"delay_ms": 1_000}),
        ({"not_before": Timestamp()}, {}),
        ({"time_to_live": Duration(seconds=1)}, {"time_to_live_ms": 1_000}),
    ],
)
def test_nothing_that_a_message_has_is_overlooked_whatever_its_payloads_size(
    size: int, fields: dict[str, Any], kept: dict[str, Any] | None
) -> None:
    """A message that has nothing else is known by its size alone."""
    payload = b"x" * size
    request = PutRequest(queue="q", messages=[Message(payload=payload, **fields)])
    limits = replace(Limits(), max_message_bytes=size + 100)
    if kept is None:
        with pytest.raises(FieldInvalid):
            requests.put_order(request, limits)
    else:
        assert list(requests.put_order(request, limits).messages) == [NewMessage(payload, **kept)]


def test_payload_id_and_headers_together_may_have_the_limits_bytes() -> None:
    assert put_one(payload=b"x" * 1_000).payload == b"x" * 1_000
    put_one(payload=b"x" * 990, id="é", headers={"ab": "cdefgh"})
    with pytest.raises(TooLarge) as caught:
        put(Message(), Message(payload=b"x" * 991, id="é", headers={"ab": "cdefgh"}))
    assert caught.value.metadata == {"field": "messages[1]", "limit": "1000", "size": "1001"}


def test_a_message_may_be_empty() -> None:
    assert put_one() == NewMessage(payload=b"")


@pytest.mark.parametrize("message_id", ["a", "x" * 200, "é" * 100, "a~", " ", "\u202e", "\xa0"])
def test_proper_ids_are_taken(message_id: str) -> None:
    assert put_one(id=message_id).id == message_id


@pytest.mark.parametrize(
    "message_id", ["x" * 201, "é" * 100 + "x", "~", "~x", "a\x00", "\n", "\x1f", "\x7f", "\x80", "\x9f"]
)
def test_improper_ids_are_refused(message_id: str) -> None:
    assert list(refused(put_one, id=message_id)) == ["messages[0].id"]


def test_headers_at_their_bounds() -> None:
    small = Limits()
    for headers in ({f"k{i}": "" for i in range(64)}, {"k" * 128: "v" * 4_096}, {"é" * 64: "\n"}):
        request = PutRequest(queue="q", messages=[Message(headers=headers)])
        (taken,) = requests.put_order(request, small).messages
        assert Message.FromString(taken.headers) == Message(headers=headers)
    assert list(refused(put_one, headers={f"k{i}": "" for i in range(65)})) == ["messages[0].headers"]
    assert list(refused(put_one, headers={"": "v"})) == ['messages[0].headers[""]']
    assert list(refused(put_one, headers={"a\n": "v"})) == ['messages[0].headers["a\\n"]']
    assert list(refused(put_one, headers={"k" * 129: ""})) == [f'messages[0].headers["{"k" * 129}"]']
    message = Message(headers={"a": "v" * 4_097})
    found = refused(lambda: requests.put_order(PutRequest(queue="q", messages=[message]), small))
    assert list(found) == ['messages[0].headers["a"]']


def of_bytes(*around: int) -> st.SearchStrategy[str]:
    """Texts of so many bytes, or of one more or less, of characters of 1, 2, 3 and 4 of them."""
    characters = st.sampled_from("a é€\U0001f600")
    sizes = st.sampled_from([size + more for size in around for more in (-1, 0, 1)])

    def text(one: str, size: int) -> str:
        count, rest = divmod(size, len(one.encode()))
        return one * count + "a" * rest

    return st.builds(text, characters, sizes)


@given(
    st.lists(
        st.tuples(
            st.one_of(st.text(max_size=3), st.characters(categories=["Cc", "Zl", "Cf"]), of_bytes(32, 128)),
            st.one_of(st.text(max_size=3), of_bytes(1_024, 4_096)),
        ),
        max_size=4,
    ).map(dict)
)
def test_headers_are_refused_for_what_is_wrong_with_them_and_kept_as_the_schema_encodes_them(
    headers: dict[str, str],
) -> None:
    request = PutRequest(queue="q", messages=[Message(headers=headers)])
    wrong = {
        key
        for key, value in headers.items()
        if not 0 < len(key.encode()) <= 128 or len(value.encode()) > 4_096 or "Cc" in map(unicodedata.category, key)
    }
    if wrong:
        found = refused(requests.put_order, request, Limits())
        assert set(found) == {f"messages[0].headers[{json.dumps(key, ensure_ascii=False)}]" for key in wrong}
    else:
        [taken] = requests.put_order(request, Limits()).messages
        assert taken.headers == Message(headers=headers).SerializeToString(deterministic=True)


def test_headers_are_encoded_the_same_whatever_their_order() -> None:
    one, other = {"a": "1", "b": "2", "c": "3"}, {"c": "3", "b": "2", "a": "1"}
    assert put_one(headers=one).headers == put_one(headers=other).headers


def test_delay_is_rounded_up_to_milliseconds() -> None:
    assert put_one(delay=Duration()).delay_ms == 0
    assert put_one(delay=Duration(nanos=1)).delay_ms == 1
    assert put_one(delay=Duration(nanos=1_000_000)).delay_ms == 1
    assert put_one(delay=Duration(seconds=1, nanos=1)).delay_ms == 1_001
    assert put_one(delay=Duration(seconds=366 * 86_400)).delay_ms == 366 * DAY_MS
    for delay in (Duration(seconds=366 * 86_400, nanos=1), NEGATIVE, Duration(seconds=2**63 - 1)):
        assert list(refused(put_one, delay=delay)) == ["messages[0].delay"]


def test_not_before_is_rounded_up_and_the_distant_past_is_now() -> None:
    assert put_one(not_before=Timestamp(seconds=1, nanos=1)).not_before_at_ms == 1_001
    assert put_one(not_before=Timestamp(seconds=1, nanos=999_999_999)).not_before_at_ms == 2_000
    for past in (Timestamp(), Timestamp(seconds=-1), Timestamp(seconds=-62_135_596_800)):
        assert put_one(not_before=past) == NewMessage(payload=b"")
    assert put_one(not_before=Timestamp(seconds=253_402_300_799)).not_before_at_ms == 253_402_300_799_000


@pytest.mark.parametrize(
    "instant",
    [
        Timestamp(seconds=-62_135_596_801),
        Timestamp(seconds=253_402_300_800),
        Timestamp(seconds=2**63 - 1),
        Timestamp(seconds=-(2**63)),
        Timestamp(nanos=-1),
        Timestamp(nanos=1_000_000_000),
    ],
)
def test_what_is_no_timestamp_is_refused(instant: Timestamp) -> None:
    assert refused(put_one, not_before=instant) == {"messages[0].not_before": "is no valid timestamp"}
    request = DelayRequest(queue="q", leases=["l"], until=instant)
    assert list(refused(requests.delay_order, request, LIMITS)) == ["until"]


def test_time_to_live_is_1_ms_to_366_days_and_rounded_up() -> None:
    assert put_one().time_to_live_ms == 0
    assert put_one(time_to_live=Duration(nanos=1_000_000)).time_to_live_ms == 1
    assert put_one(time_to_live=Duration(nanos=1_000_001)).time_to_live_ms == 2
    assert put_one(time_to_live=Duration(seconds=366 * 86_400)).time_to_live_ms == 366 * DAY_MS
    longer = Duration(seconds=366 * 86_400, nanos=1)
    for span in (Duration(), Duration(nanos=999_999), NEGATIVE, longer, Duration(seconds=2**63 - 1)):
        assert list(refused(put_one, time_to_live=span)) == ["messages[0].time_to_live"]


def test_duplicate_rules() -> None:
    rules = (OnDuplicate.REJECT, OnDuplicate.REJECT, OnDuplicate.KEEP, OnDuplicate.REPLACE)
    for value, rule in enumerate(rules):
        assert put(Message(), on_duplicate=value).on_duplicate is rule
    for value in (4, 2**31 - 1, -1):
        assert list(refused(put, Message(), on_duplicate=value)) == ["on_duplicate"]


def test_the_same_id_twice_in_a_batch_is_left_to_the_store() -> None:
    assert [message.id for message in put(Message(id="a"), Message(id="a")).messages] == ["a", "a"]


def test_put_passes_on_what_has_no_range() -> None:
    order = put(Message(payload=b"x"), all_or_nothing=True, producer="me")
    assert (order.queue, order.all_or_nothing, order.producer, order.wait_ms) == ("q", True, "me", 0)


def test_every_violation_of_a_batch_is_told_with_its_path() -> None:
    found = refused(lambda: put(Message(), Message(id="~a"), Message(delay=NEGATIVE), wait=NEGATIVE))
    assert list(found) == ["messages[1].id", "messages[2].delay", "wait"]


def test_the_first_violation_decides_the_reason() -> None:
    big, bad = Message(payload=b"x" * 1_001), Message(id="~")
    assert list(refused(put, big, bad, error_class=TooLarge)) == ["messages[0]", "messages[1].id"]
    assert list(refused(put, bad, big)) == ["messages[0].id", "messages[1]"]


_IDS = st.one_of(
    st.text(max_size=3),
    st.text("ab~\t\x7f é\u2028", max_size=8),
    st.sampled_from([0, 1, 127, 128, 200, 201]).map("i".__mul__),
)
_BESIDES = st.sampled_from(
    [{}, {"headers": {"": ""}}, {"delay": Duration()}, {"not_before": Timestamp()}, {"time_to_live": Duration(nanos=1)}]
)
_SIZES = st.sampled_from([0, 1, 127, 128, 800, 871, 872, 873, 995, 996, 997, 998, 999, 1_000, 1_001])


@given(message_id=_IDS, size=_SIZES, besides=_BESIDES)
def test_what_has_but_a_plain_id_is_put_as_if_it_were_looked_at_closely(
    message_id: str, size: int, besides: dict[str, Any]
) -> None:
    message = Message(id=message_id, payload=b"x" * size, **besides)

    def outcome() -> object:
        try:
            return put(message).messages[0]
        except InvalidInput as error:
            return type(error), error.metadata, error.violations

    with patch.object(requests, "_is_plain_id", return_value=False):
        closely = outcome()
    assert outcome() == closely
