"""The text of metrics is what Prometheus's own parsers read, whatever stands in a label; several processes are one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import cast

import pytest

from harness import eventually
from harness.scraping import Scraped
from headwayd.domain.histograms import Histogram
from headwayd.domain.namespaces import DEFAULT, SEPARATOR
from headwayd.engine.counting.census import Census
from headwayd.engine.counting.counts import OTHERS, Counts
from headwayd.engine.ports import Store
from headwayd.telemetry import metric_names as names
from headwayd.telemetry.exposition import END, OPEN_METRICS, PLAIN, content_type_of, text_of
from headwayd.telemetry.metrics import Metrics
from headwayd.telemetry.reading import Buckets, Reading, Series, together
from headwayd.telemetry.sharing import Shared, make_places
from unit.test_counting import FakeQueues


@pytest.fixture
def queues() -> FakeQueues:
    return FakeQueues()


def told(reading: Reading, content_type: str) -> Scraped:
    text = "".join(text_of(metric, reading, content_type) for metric in names.ALL) + END[content_type]
    return Scraped(text, is_open=content_type == OPEN_METRICS)


def buckets(*values: float) -> Buckets:
    histogram = Histogram((0.1, 1.0, 10.0))
    for value in values:
        histogram.note(value)
    return Buckets.of(histogram)


@pytest.mark.parametrize("content_type", [PLAIN, OPEN_METRICS])
def test_the_parsers_read_what_was_written(content_type: str) -> None:
    hostile = 'a"b\\c\nd{}=,🐴'
    reading: Reading = {
        names.MESSAGES_PUT.name: {(DEFAULT, "jobs"): 3, (DEFAULT, hostile): 2**53},
        names.PUTS_REFUSED.name: {(DEFAULT, hostile, "QUEUE_FULL"): 1},
        names.WAIT.name: {(DEFAULT, hostile): buckets(0.05, 0.1, 5.0, 99.0)},
        names.POSITION_LAG.name: {(): buckets()},
        names.READY.name: {(): 1},
    }
    scraped = told(reading, content_type)
    assert scraped.names == {metric.name for metric in names.ALL}
    assert scraped.value("messages_put_total", queue="jobs") == 3
    assert scraped.value("messages_put_total", queue=hostile) == 2**53
    assert scraped.value("puts_refused_total", queue=hostile, reason="QUEUE_FULL") == 1
    assert scraped.by("le", "wait_seconds_bucket", queue=hostile) == {"0.1": 2, "1.0": 2, "10.0": 3, "+Inf": 4}
    assert scraped.value("wait_seconds_count", queue=hostile) == 4
    assert scraped.value("wait_seconds_sum", queue=hostile) == pytest.approx(104.15)
    assert scraped.value("position_lag_seconds_bucket", le="+Inf") == 0
    assert scraped.value("ready") == 1


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", PLAIN),
        ("*/*", PLAIN),
        ("text/plain;version=0.0.4;q=0.5", PLAIN),
        ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", OPEN_METRICS),
        ("text/html, application/openmetrics-text", OPEN_METRICS),
        (",;,=;q", PLAIN),
    ],
)
def test_the_format_is_the_one_asked_for(accept: str, wanted: str) -> None:
    assert content_type_of(accept) == wanted


def test_several_processes_are_one() -> None:
    one: Reading = {
        names.MESSAGES_PUT.name: {("a",): 1, ("b",): 2},
        names.WAIT.name: {("a",): buckets(0.05)},
        names.READY.name: {(): 1},
        names.BUILD_INFO.name: {("1",): 1},
        names.WATCHERS.name: {(): 3},
    }
    other: Reading = {
        names.MESSAGES_PUT.name: {("b",): 5},
        names.WAIT.name: {("a",): buckets(50.0)},
        names.READY.name: {(): 0},
        names.BUILD_INFO.name: {("1",): 1},
        names.WATCHERS.name: {(): 4},
    }
    assert together((one, other)) == {
        names.MESSAGES_PUT.name: {("a",): 1, ("b",): 7},
        names.WAIT.name: {("a",): buckets(0.05, 50.0)},
        names.READY.name: {(): 0},  # one that is not ready keeps all from it
        names.BUILD_INFO.name: {("1",): 1},
        names.WATCHERS.name: {(): 7},
    }


def test_who_takes_a_dead_ones_place_goes_on_from_its_counters_and_not_from_its_gauges() -> None:
    places = make_places(2)
    try:
        first, other = Shared(places, own=0), Shared(places, own=1)
        first.write({names.MESSAGES_PUT.name: {("a",): 5}, names.WATCHERS.name: {(): 3}})
        assert other.all({names.MESSAGES_PUT.name: {("a",): 1}}) == {
            names.MESSAGES_PUT.name: {("a",): 6},
            names.WATCHERS.name: {(): 3},
        }
        successor = Shared(places, own=0)
        assert successor.all({names.MESSAGES_PUT.name: {("a",): 2}}) == {names.MESSAGES_PUT.name: {("a",): 8}}
        assert other.all({names.MESSAGES_PUT.name: {("a",): 1}}) == {names.MESSAGES_PUT.name: {("a",): 8}}
    finally:
        for place in places:
            os.close(place)


def worker(places: Sequence[int], queues: FakeQueues) -> tuple[Metrics, Counts, Census]:
    """In the first place, with three series of its own at most."""
    counts = Counts(most_queues=3)
    census = Census(cast(Store, queues), counts)
    shared = Shared(places, own=0)
    return Metrics(counts, census, watcher_count=int, keeps_flood_out=bool, shared=shared), counts, census


async def puts(metrics: Metrics) -> Series:
    return (await metrics.read(of_all=True))[names.MESSAGES_PUT.name]


async def test_who_takes_a_place_has_series_of_the_same_queues_and_no_more(queues: FakeQueues) -> None:
    places = make_places(1)
    inside = ["a", "b", f"team{SEPARATOR}c", "d"]
    queues.all |= set(inside)
    try:
        for times in range(1, 4):
            metrics, counts, _ = worker(places, queues)
            for queue in inside if times == 1 else reversed(inside):
                counts.of(queue).put += 1
            told = {(DEFAULT, "a"): times, (DEFAULT, "b"): times, ("team", "c"): times, (OTHERS, OTHERS): times}
            assert await puts(metrics) == told
    finally:
        os.close(places[0])


async def test_a_queue_that_is_gone_has_no_series_in_any_place(queues: FakeQueues) -> None:
    places = make_places(1)
    queues.all |= {"a", "b", "c"}
    try:
        for _ in range(2):
            metrics, counts, census = worker(places, queues)
            for queue in sorted(queues.all):
                counts.of(queue).put += 1
            assert (await puts(metrics)).keys() == {(DEFAULT, queue) for queue in queues.all}
        queues.all = {"b", "d"}
        await census.forget_gone()  # nobody has looked
        counts.of("d").put += 1
        assert await puts(metrics) == {(DEFAULT, "b"): 2, (DEFAULT, "d"): 1}
        queues.all |= {"a"}
        counts.of("a").put += 1
        assert await puts(metrics) == {(DEFAULT, "a"): 1, (DEFAULT, "b"): 2, (DEFAULT, "d"): 1}
    finally:
        os.close(places[0])


async def test_of_several_workers_each_looks_for_queues_that_are_gone(
    queues: FakeQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwayd.telemetry.metrics._TICK_S", 0.0)
    places = make_places(1)
    try:
        metrics, counts, _ = worker(places, queues)
        counts.of("gone")
        running = asyncio.create_task(metrics.run())
        await eventually(lambda: not counts.own)
        running.cancel()
    finally:
        os.close(places[0])


def test_a_place_that_is_just_being_written_tells_what_stood_there_before() -> None:
    places = make_places(2)
    try:
        one, other = Shared(places, own=0), Shared(places, own=1)
        one.write({names.MESSAGES_PUT.name: {("a",): 5}})
        assert other.all({}) == {names.MESSAGES_PUT.name: {("a",): 5}}
        os.pwrite(places[0], b"half written", 20)
        assert other.all({}) == {names.MESSAGES_PUT.name: {("a",): 5}}
    finally:
        for place in places:
            os.close(place)


def test_of_a_worker_that_has_long_been_silent_only_what_grows_for_ever_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places = make_places(2)
    try:
        one, other = Shared(places, own=0), Shared(places, own=1)
        one.write({names.MESSAGES_PUT.name: {("a",): 5}, names.READY.name: {(): 1}})
        monkeypatch.setattr("headwayd.telemetry.sharing._GONE_AFTER_MS", -1)
        assert other.all({}) == {names.MESSAGES_PUT.name: {("a",): 5}}
    finally:
        for place in places:
            os.close(place)
