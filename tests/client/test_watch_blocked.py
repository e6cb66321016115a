"""Watching a blocked producer: what is told, and what ends it."""

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import pytest

import headway
from client.conftest import CommandLine
from client.fake_service import FakeService
from headway.v1 import queue_service_pb2 as pb


def _at(second: int, position: int) -> pb.WatchPositionResponse:
    told = pb.Position(producer="me", position=position, length=7)
    told.poll_min.FromSeconds(1)
    told.poll_max.FromSeconds(9)
    answer = pb.WatchPositionResponse(position=told)
    answer.as_of.FromDatetime(datetime(2030, 1, 1, 0, 0, second, tzinfo=UTC))
    return answer


def _end(outcome: pb.Outcome.ValueType) -> pb.WatchPositionResponse:
    return pb.WatchPositionResponse(finished=pb.Finished(outcome=outcome))


@pytest.mark.parametrize("outcome", [pb.OUTCOME_DRAINED, pb.OUTCOME_DELETED])
async def test_places_are_told_over_broken_streams_until_the_queue_is_closed_or_deleted(
    service: FakeService, queue: headway.Queue, outcome: pb.Outcome.ValueType
) -> None:
    service.plays = [[_at(1, 0), _at(3, 2)], [_at(2, 3), _at(3, 2), _at(4, 1)], [_end(outcome)]]
    async with asyncio.timeout(30):
        told = [place async for place in queue.watch_blocked("me")]
    assert [place.position for place in told] == [0, 2, 2, 1]
    assert told[1] == headway.Blocked(
        producer="me",
        as_of=datetime(2030, 1, 1, 0, 0, 3, tzinfo=UTC),
        position=2,
        length=7,
        poll_min=timedelta(seconds=1),
        poll_max=timedelta(seconds=9),
    )
    assert [request.blocked.producer for request in service.requests("WatchPosition")] == ["me"] * 3


async def test_places_are_told_on_when_the_clock_of_the_store_went_back(
    service: FakeService, queue: headway.Queue
) -> None:
    service.plays = [[_at(50, 3), _at(20, 2)], [_at(10, 1)], [_end(pb.OUTCOME_DRAINED)]]
    async with asyncio.timeout(30):
        assert [place.position async for place in queue.watch_blocked("me")] == [3, 2, 1]


async def test_a_queue_that_is_gone_ends_it_and_one_that_never_was_is_an_error(
    service: FakeService, queue: headway.Queue, client: headway.Client
) -> None:
    service.plays = [[_at(1, 1)]]
    async with asyncio.timeout(30), aclosing(queue.watch_blocked("me")) as places:
        assert (await anext(places)).position == 1
        await queue.delete()
        with pytest.raises(StopAsyncIteration):
            await anext(places)
        with pytest.raises(headway.QueueNotFound):
            await anext(client.queue("never").watch_blocked("me"))


async def test_show_place_needs_somebody_who_waits(command_line: CommandLine) -> None:
    finished = await command_line.run("put", "q", "x", "--show-place")
    assert finished.code == 2
    assert "--wait" in finished.err
