"""What the metrics are at one moment, as plain values: read from this process's numbers, and put together with others'.

A reading is made when somebody asks, never where something is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from headwayd.domain.histograms import Histogram
from headwayd.domain.namespaces import split
from headwayd.engine.counting.census import Seen
from headwayd.engine.counting.counts import DEFECT, OTHERS, Counts, QueueCounts
from headwayd.telemetry import metric_names as names
from headwayd.telemetry.metric_names import Kind, Metric, Together


class Buckets(NamedTuple):
    """A histogram's numbers: `counts[i]` values were not above `bounds[i]` and above the bound before; the last count
    has those above all."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @classmethod
    def of(cls, histogram: Histogram) -> Buckets:
        """As it stands."""
        return cls(tuple(histogram.bounds), tuple(histogram.counts), histogram.total)

    def plus(self, other: Buckets) -> Buckets:
        """Both."""
        counts = tuple(one + another for one, another in zip(self.counts, other.counts, strict=True))
        return Buckets(self.bounds, counts, self.total + other.total)


Labels = tuple[str, ...]
Value = float | Buckets
Series = dict[Labels, Value]
Reading = dict[str, Series]  # by the metric's name, then by the values of its labels

_METRICS: Mapping[str, Metric] = {metric.name: metric for metric in names.ALL}
_OTHERS: Labels = (OTHERS, OTHERS)  # of whatever namespaces
_QUEUE = len(names.OF_QUEUE)
_PICK: Mapping[Together, Callable[[float, float], float]] = {Together.MOST: max, Together.LEAST: min}


def of_counts(counts: Counts) -> Reading:
    """What this process did."""
    queues: dict[Labels, QueueCounts] = {split(queue): one for queue, one in counts.own.items()}
    queues[_OTHERS] = counts.others
    return {
        names.MESSAGES_PUT.name: _each(queues, lambda one: one.put),
        names.MESSAGES_DEDUPLICATED.name: _each(queues, lambda one: one.deduplicated),
        names.PUTS_REFUSED.name: _by_kind(queues, lambda one: one.refused),
        names.MESSAGES_DELIVERED.name: _each(queues, lambda one: one.delivered),
        names.MESSAGES_REDELIVERED.name: _each(queues, lambda one: one.redelivered),
        names.MESSAGES_SETTLED.name: _by_kind(queues, lambda one: one.settled),
        names.WAIT.name: _histograms((labels, one.wait) for labels, one in queues.items()),
        names.WORK.name: _histograms((labels, one.work) for labels, one in queues.items()),
        names.LEASES_RELEASED.name: {(cause,): number for cause, number in counts.released.items()},
        names.POSITION_LAG.name: {(): Buckets.of(counts.position_lag)},
        names.ETA_ERROR.name: {(): Buckets.of(counts.eta_error)},
        names.STORE_SECONDS.name: _histograms(((script,), one) for script, one in counts.store.items()),
        names.STORE_TOGETHER.name: {(): Buckets.of(counts.together)},
        names.LOOP_LAG.name: {(): Buckets.of(counts.loop_lag)},
        names.CALLS.name: {key: number for key, number in counts.calls.items() if number or key[1] == DEFECT},
        names.CALL_SECONDS.name: _histograms(((method,), one) for method, one in counts.call_seconds.items()),
        names.STREAMS.name: {(): counts.stream_count},
    }


def of_census(seen: Seen) -> Reading:
    """What the store told of queues."""
    reading: Reading = {names.STORE_REACHABLE.name: {(): int(seen.is_reachable)}}
    if not seen.is_reachable:
        return reading
    messages: Series = {}
    waiters: Series = {}
    queues = {_OTHERS if queue == OTHERS else split(queue): one for queue, one in seen.queues.items()}
    for of, one in queues.items():
        messages |= {
            (*of, "waiting"): one.waiting,
            (*of, "leased"): one.leased,
            (*of, "delayed"): one.delayed,
            (*of, "dead"): one.dead,
        }
        waiters |= {(*of, "consumers"): one.consumers, (*of, "producers"): one.producers}
    if seen.queue_count is not None:
        reading[names.QUEUES.name] = {(): seen.queue_count}
    return reading | {
        names.QUEUE_MESSAGES.name: messages,
        names.QUEUE_WAITERS.name: waiters,
        names.QUEUE_OLDEST_AGE.name: {of: one.oldest_age_s for of, one in queues.items()},
        # Of the others not all are looked at each time, and a counter must not fall.
        names.MESSAGES_ACKED.name: {of: one.acked for of, one in queues.items() if of != _OTHERS},
        names.LEASES_LAPSED.name: {of: one.lapsed for of, one in queues.items() if of != _OTHERS},
    }


def together(readings: Iterable[Reading]) -> Reading:
    """Several processes as one. What is the store's own is in one of them only."""
    result: Reading = {}
    for reading in readings:
        for name, series in reading.items():
            sums = result.setdefault(name, {})
            for labels, value in series.items():
                known = sums.get(labels)
                sums[labels] = value if known is None else _both(_METRICS[name], known, value)
    return result


def _both(metric: Metric, one: Value, other: Value) -> Value:
    if isinstance(one, Buckets) and isinstance(other, Buckets):
        return one.plus(other)
    assert isinstance(one, int | float)
    assert isinstance(other, int | float)
    pick = _PICK.get(metric.together)
    return one + other if pick is None else pick(one, other)


def cumulative(reading: Reading) -> Reading:
    """Of a reading only what grows for ever: what a process that takes another's place goes on from."""
    return {name: series for name, series in reading.items() if _METRICS[name].kind is not Kind.GAUGE}


def queues_in(reading: Reading) -> set[Labels]:
    """Those that have series of their own in it, by their namespace and name."""
    found = {labels[:_QUEUE] for name, series in reading.items() if _is_by_queue(name) for labels in series}
    return found - {_OTHERS}


def only_of(reading: Reading, queues: Collection[Labels]) -> Reading:
    """A reading without the series of other queues than these."""
    known = {*queues, _OTHERS}
    return {
        name: {labels: value for labels, value in series.items() if labels[:_QUEUE] in known}
        if _is_by_queue(name)
        else series
        for name, series in reading.items()
    }


def _is_by_queue(name: str) -> bool:
    return _METRICS[name].labels[:_QUEUE] == names.OF_QUEUE


def _each(queues: Mapping[Labels, QueueCounts], number_of: Callable[[QueueCounts], int]) -> Series:
    return {of: number for of, one in queues.items() if (number := number_of(one)) or of != _OTHERS}


def _by_kind(queues: Mapping[Labels, QueueCounts], numbers_of: Callable[[QueueCounts], Mapping[str, int]]) -> Series:
    return {(*of, kind): number for of, one in queues.items() for kind, number in numbers_of(one).items()}


def _histograms(each: Iterable[tuple[Labels, Histogram]]) -> Series:
    """Those that have a value: a queue that nobody uses has no histograms."""
    return {labels: Buckets.of(histogram) for labels, histogram in each if any(histogram.counts)}
