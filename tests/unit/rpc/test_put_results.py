"""Results that are written as bytes are those that the schema's own code writes."""

from __future__ import annotations

import random

import pytest

from headway.v1.queue_service_pb2 import ProduceResponse, PutResponse
from headwayd.domain.joined import Joined
from headwayd.rpc.conversion import produce_response, put_response
from headwayd.rpc.encoded import as_message
from headwayd.rpc.put_results import results_in_bytes

GENERATION = "k3j4h5k3j4h5"
# Where the number of digits or bytes changes.
EDGES = [1, 9, 10, 99, 100, 127, 128, 999, 1_000, 9_999, 10_000, 16_383, 16_384, 99_999, 2_097_152, 2**53, 2**63]


def by_the_schema(joined: Joined) -> bytes:
    response = ProduceResponse()
    for outcome in joined:
        response.results.add(id=outcome.id, ticket=outcome.ticket, position=outcome.position)
    return response.SerializeToString()


def assert_alike(joined: Joined) -> None:
    assert results_in_bytes(joined, ProduceResponse.RESULTS_FIELD_NUMBER) == by_the_schema(joined)


@pytest.mark.parametrize("ticket", EDGES)
def test_bytes_are_the_schemas_at_every_edge(ticket: int) -> None:
    for position in EDGES:
        for before in (0, 1, 150):
            assert_alike(Joined(GENERATION, max(ticket - before, 1), max(position - before, 1), 300))


def test_bytes_are_the_schemas_anywhere() -> None:
    for _ in range(500):
        ticket, position = (random.randint(1, 10 ** random.randint(1, 18)) for _ in range(2))
        assert_alike(Joined(GENERATION, ticket, position, random.randint(1, 1_000)))


@pytest.mark.parametrize("generation", ["", "g", "é", "g" * 115, "g" * 116, "g" * 300])
def test_any_generation_is_told(generation: str) -> None:
    joined = Joined(generation, 95, 120, 20)
    written = results_in_bytes(joined, ProduceResponse.RESULTS_FIELD_NUMBER)
    assert (written is None) == (len(generation) > 115)
    assert produce_response(0, joined).SerializeToString() == by_the_schema(joined)


def test_none_is_written_that_has_no_number() -> None:
    for joined in (Joined("g", 0, 1, 9), Joined("g", 1, 0, 9)):
        assert results_in_bytes(joined, 1) is None
        assert put_response(joined) == put_response(list(joined))


@pytest.mark.parametrize("count", [*range(6), 100])
def test_both_answers_are_the_same_as_one_by_one(count: int) -> None:
    joined = Joined(GENERATION, 990, 120, count)
    assert put_response(joined).SerializeToString() == put_response(list(joined)).SerializeToString()
    assert produce_response(7, joined).SerializeToString() == produce_response(7, list(joined)).SerializeToString()
    response, answer = as_message(put_response(joined)), as_message(produce_response(7, joined))
    assert isinstance(response, PutResponse)
    assert isinstance(answer, ProduceResponse)
    assert (len(response.results), answer.batch) == (count, 7)
