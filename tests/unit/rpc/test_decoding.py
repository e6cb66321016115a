"""Bytes that are no proper request are refused with a reason, by the server that is really running."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message as ProtoMessage

from harness.errors import error_of, refused
from headway.v1.admin_service_pb2 import RedriveRequest
from headway.v1.message_pb2 import Message
from headway.v1.queue_service_pb2 import ConsumeRequest, ConsumeStart, ProduceRequest, PutRequest, PutResponse
from headwayd.domain.errors import NameRefused
from headwayd.domain.footprint import MESSAGE_BYTES
from headwayd.domain.limits import Limits
from headwayd.rpc.decoding import Undecodable, decoder
from headwayd.rpc.room import LARGE_BYTES, Large
from unit.rpc.fake_engine import FakeEngine

BAD = b"\xff\xfe"


def put_bytes(channel: grpc.aio.Channel) -> Any:
    """Put, with bytes for a request."""
    return channel.unary_unary("/headway.v1.QueueService/Put", response_deserializer=PutResponse.FromString)


def bad_of(request: ProtoMessage, marker: bytes = b"??") -> bytes:
    """The request's bytes with two bytes that are no UTF-8 in the place of the marker."""
    raw = request.SerializeToString()
    assert raw.count(marker) == 1
    return raw.replace(marker, BAD)


@pytest.mark.parametrize(
    ("raw", "reason", "field"),
    [
        (bad_of(PutRequest(queue="q??")), "NAME_REFUSED", "queue"),
        (bad_of(PutRequest(queue="q", producer="??")), "FIELD_INVALID", "producer"),
        (
            bad_of(PutRequest(queue="q", messages=[Message(), Message(payload=b"\xff"), Message(id="??")])),
            "FIELD_INVALID",
            "messages[2].id",
        ),
        (
            bad_of(PutRequest(queue="q", messages=[Message(headers={"key": "v??"})])),
            "FIELD_INVALID",
            "messages[0].headers",
        ),
        (b"\xff\xff\xff", "FIELD_INVALID", "request"),
        (b"\x0a\x05ab", "FIELD_INVALID", "request"),
        (bad_of(PutRequest(queue="q", producer="??" + "x" * 100_000)), "FIELD_INVALID", "request"),
        (bad_of(PutRequest(queue="q??", producer="x" * 100_000)), "NAME_REFUSED", "queue"),
        (bad_of(PutRequest(queue="q??", producer="x" * 100_000))[:-1], "FIELD_INVALID", "request"),
    ],
    ids=[
        "queue",
        "text",
        "id of a message",
        "header",
        "noise",
        "cut off",
        "too large to explain",
        "queue of a large one",
        "large and cut off",
    ],
)
async def test_bytes_that_are_no_request_are_invalid_arguments(
    raw: bytes, reason: str, field: str, channel: grpc.aio.Channel, engine: FakeEngine
) -> None:
    with refused(reason, grpc.StatusCode.INVALID_ARGUMENT) as said:
        await put_bytes(channel)(raw, timeout=5)
    assert said.metadata == {"field": field}
    assert list(said.violations) == [field]
    assert engine.calls == []


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (ConsumeRequest(start=ConsumeStart(queue="q??")), "queue"),
        (ProduceRequest(queue="q??"), "queue"),
        (RedriveRequest(queue="q", to_queue="q??"), "to_queue"),
    ],
    ids=["start of Consume", "Produce", "target of Redrive"],
)
def test_a_name_that_is_no_utf8_is_refused_as_a_name_wherever_it_stands(request_: ProtoMessage, field: str) -> None:
    found = decoder(type(request_), max_bytes=1_000)(bad_of(request_))
    assert isinstance(found, Undecodable)
    assert isinstance(found.error, NameRefused)
    assert found.error.metadata == {"field": field}
    assert [one.field for one in found.error.violations] == [field]


async def test_text_that_is_no_utf8_in_unknown_fields_is_nobodys_business(
    channel: grpc.aio.Channel, engine: FakeEngine
) -> None:
    raw = PutRequest(queue="q", messages=[Message()]).SerializeToString() + b"\xa2\x06\x02" + BAD
    await put_bytes(channel)(raw, timeout=5)
    assert [operation for operation, _ in engine.calls] == ["put"]


class TestLargeRequests:
    @pytest.fixture
    def engine(self) -> FakeEngine:
        return FakeEngine(limits=Limits(max_request_bytes=10_000))

    async def test_a_request_of_the_limit_is_taken_and_one_more_is_too_large(
        self, channel: grpc.aio.Channel, engine: FakeEngine
    ) -> None:
        put = put_bytes(channel)
        empty = len(PutRequest(queue="q", messages=[Message(payload=b"x" * 9_000)]).SerializeToString()) - 9_000
        for size in (9_999, 10_000):
            raw = PutRequest(queue="q", messages=[Message(payload=b"x" * (size - empty))]).SerializeToString()
            assert len(raw) == size
            assert len((await put(raw, timeout=5)).results) == 1
        with refused("TOO_LARGE", grpc.StatusCode.INVALID_ARGUMENT) as said:
            await put(b"\x00" * 10_001, timeout=5)
        assert said.metadata == {"field": "request", "limit": "10000", "size": "10001"}

    async def test_a_much_larger_request_is_refused_by_grpc_itself_without_details(
        self, channel: grpc.aio.Channel, engine: FakeEngine
    ) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await put_bytes(channel)(b"\x00" * 2_000_000, timeout=5)
        said = error_of(caught.value)
        assert (said.code, said.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "")
        assert engine.calls == []


@pytest.mark.parametrize("count", [0, 1, 95, 96, 97, 1_000])
def test_a_request_counts_for_its_bytes_and_for_its_messages(count: int) -> None:
    request = PutRequest(queue="q", messages=[Message()] * count)
    raw = request.SerializeToString()
    weight = len(raw) + MESSAGE_BYTES * count
    found = decoder(PutRequest, max_bytes=1024 * 1024)(raw)
    assert found == (request if weight < LARGE_BYTES else Large(request, weight))
    assert decoder(PutRequest, max_bytes=1024 * 1024, counted=True)(raw) == Large(request, weight)


def test_no_request_counts_for_more_than_one_may_have() -> None:
    """There is room for one: so it can be waited for."""
    raw = PutRequest(messages=[Message()] * 1_000).SerializeToString()
    found = decoder(PutRequest, max_bytes=100_000)(raw)
    assert isinstance(found, Large)
    assert found.size == 100_000
