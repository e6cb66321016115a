"""Estimates how long those who stand in a line will wait, from successive looks at the queue: how fast the line moves
of late, and how far such estimates were off. Knows no clock: time is what the looks tell. docs/eta.md tells the method.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from headwayd.domain.places import LineNumbers
from headwayd.domain.watching import Eta
from headwayd.engine.pace import Pace

MIN_EVENTS = 4  # fewer are no basis
LONGEST_GAP_MS = 30_000  # between two looks; what happened in a longer one cannot be told from its ends
STALE_MS = 1_000  # how old what we know may be, so how long "at once" may take
QUIET_MS = 2_000  # without any consumer, at least, before we say that there is none
QUIET_PACES = 5  # so many times what a departure takes, if that is longer
FADING_SHARE = 500  # departures: how far back it is remembered which share of the slots is busy
LONGEST_RESTS = 1_000  # times as long as a lease: longer ones are none
WINDOW_RESTS = 3  # a slot is seen in use within so many rests, and while it is in use
FADING_RETURNS = 200  # departures: the same for those that leave again
MEDIAN_STEPS = 0.3  # the median of a sum of n random spans is about n - 0.3 means (exponential ones: n - 1/3)
DRIFT = 0.04  # variance of the logarithm of a pace, from now until the wait is over
MEDIAN_OF_MEAN = math.exp(-DRIFT / 2)  # as if that were normally distributed
BANDS = 24  # positions 1, 2-3, 4-7, …; the last has all beyond
PROBES = 4  # estimates under test at a time, in each band
NORMAL_P90 = 1.2816  # standard deviations from the median to the 90th percentile
MAX_MS = 10**11  # three years; more is told as this


@dataclass(slots=True)
class _Probe:
    """An estimate under test: at `at_ms` the `ticket` was expected to leave the line `p50_ms` later."""

    ticket: int
    at_ms: int
    p50_ms: float


@dataclass(slots=True)
class _Band:
    """Positions that differ by less than the factor two. `margin` is the logarithm of p90 / p50."""

    deviation: float
    margin: float
    note_error: Callable[[float], None] | None = None
    tested: int = 0
    probes: deque[_Probe] = field(default_factory=deque)

    def test(self, probe: _Probe, took_ms: float) -> None:
        """Moves the margin so that one wait of ten is longer, whatever the waits' distribution is."""
        ratio = max(took_ms, 1.0) / max(probe.p50_ms, 1.0)
        if self.note_error is not None:
            self.note_error(ratio)
        is_longer = math.log(ratio) > self.margin
        self.tested += 1
        step = 2 * self.deviation * max(0.03, 1 / (self.tested + 10))
        self.margin = max(self.margin + step * (0.9 if is_longer else -0.1), 0.1 * self.deviation)


class _Margins:
    """How far p90 lies above p50, by position."""

    def __init__(self, note_error: Callable[[float], None] | None = None) -> None:
        deviations = [math.sqrt(0.88 / (1 << band) + DRIFT) for band in range(BANDS)]
        self._bands = [_Band(deviation, NORMAL_P90 * deviation, note_error) for deviation in deviations]
        self._note()

    def p90_of(self, position: int, step_ms: float) -> float:
        """Never less than that of a smaller position, though each band learned its margin alone."""
        band = min(position.bit_length(), BANDS) - 1
        factor, least_ms = self._factors[band]
        return max(_median_ms(position, step_ms) * factor, least_ms * step_ms)

    def _note(self) -> None:
        """Keeps p90 / p50 of each band, and the most that p90 is in the bands before, for a step of 1 ms."""
        self._factors, most = list[tuple[float, float]](), 0.0
        for index, band in enumerate(self._bands):
            factor = math.exp(band.margin)
            self._factors.append((factor, most))
            most = max(most, _median_ms((2 << index) - 1, 1.0) * factor)

    def clear(self) -> None:
        """Drops the tests under way: something came between that is no wait for a turn."""
        for band in self._bands:
            band.probes.clear()

    def resolve(self, last: LineNumbers, numbers: LineNumbers) -> None:
        """Ends the tests of tickets that left the line between two looks: at even distances, as far as we know."""
        moved = numbers.head - last.head
        if moved <= 0:
            return
        span_ms = numbers.at_ms - last.at_ms
        for band in self._bands:
            while band.probes and band.probes[0].ticket <= numbers.head:
                probe = band.probes.popleft()
                left_at_ms = last.at_ms + span_ms * (probe.ticket - last.head) / moved
                band.test(probe, left_at_ms - probe.at_ms)
        self._note()

    def place(self, numbers: LineNumbers, step_ms: float) -> None:
        """Puts estimates to the test, a few in each band: later ones only when the line has moved a good part."""
        for index, band in enumerate(self._bands):
            low = 1 << index
            if low > numbers.length:
                return
            position = low + numbers.head % min(low, numbers.length - low + 1)
            ticket = numbers.tail - (numbers.length - position)
            former = band.probes[-1].ticket if band.probes else numbers.head
            if len(band.probes) < PROBES and ticket > former + (low // PROBES if band.probes else 0):
                band.probes.append(_Probe(ticket, numbers.at_ms, _median_ms(position, step_ms)))


class _Slots:
    """How many slots work is done in: the most that were seen lately, because one that is free for the blink of an eye
    between two messages counts, and which share of them is busy while messages wait."""

    def __init__(self) -> None:
        self._most = self._former_most = 0  # in the current window of time, and in the one before
        self._began_at_ms = 0
        self._busy_ms = self._all_ms = 0.0
        self._idle_ms = 0  # since something was leased or left, while messages waited

    def see(self, numbers: LineNumbers, window_ms: float) -> None:
        """Forgets what is older than two windows; not while nobody is there: all may rest, and whether they are gone is
        another question."""
        slots = numbers.leased + numbers.consumers_ready
        if not slots:
            self.keep(numbers.at_ms)
            return
        if numbers.at_ms > self._began_at_ms + window_ms:
            self._former_most, self._most, self._began_at_ms = self._most, slots, numbers.at_ms
        self._most = max(self._most, slots)

    def keep(self, at_ms: int) -> None:
        """Nothing was granted until now, but not for lack of workers: what was seen before counts still."""
        self._began_at_ms = at_ms

    def learn(self, span_ms: int, leased: int, limit: int, departed: int) -> None:
        """While messages waited, so many of the slots were busy. That none was is a rest, if work goes on soon."""
        if not leased and not departed:
            self._idle_ms += span_ms
            return
        rest_ms = self._idle_ms if self._idle_ms <= LONGEST_GAP_MS else 0
        self._idle_ms = 0
        fading = math.exp(-departed / FADING_SHARE)
        slots = max(self._within(limit), leased)
        self._busy_ms = self._busy_ms * fading + span_ms * leased
        self._all_ms = self._all_ms * fading + (span_ms + rest_ms) * slots

    def rest_ms(self, lease_ms: float) -> float:
        """How long a slot rests between two leases, on average; before anything was learned as long as one lasts."""
        return lease_ms * min(self._all_ms / self._busy_ms - 1, LONGEST_RESTS) if self._busy_ms else lease_ms

    def busy(self, limit: int) -> float:
        """How many are busy at a time while messages wait."""
        return self._within(limit) * (self._busy_ms / self._all_ms if self._busy_ms else 1.0)

    @property
    def are_known(self) -> bool:
        """Whether any was seen in use."""
        return self._most > 0 or self._former_most > 0

    def _within(self, limit: int) -> int:
        most = max(self._most, self._former_most)
        return min(most, limit) if limit else most


class WaitEstimator:
    """Estimates the waits of one queue. O(1) in time and memory for each look and each estimate. `note_error` is told
    how long a wait was, as a multiple of p50, of each estimate that was put to the test."""

    def __init__(self, *, note_error: Callable[[float], None] | None = None) -> None:
        self._note_error = note_error
        self._now: LineNumbers | None = None  # the latest look
        self._last: LineNumbers | None = None  # the latest that was learned from: an earlier instant than the next
        self._forget()

    def _forget(self) -> None:
        self._lease = Pace()  # what one lease takes
        self._departure = Pace()  # from one departure to the next while messages wait
        self._grant = Pace()  # from one departure to the next while consumers wait
        self._slots = _Slots()
        self._margins, self._prior_margins = _Margins(self._note_error), _Margins()
        self._unseen_count = 0  # leases that ended while none was seen
        self._new = self._departed = 0.0  # departures of late: of messages that left for the first time, and all
        self._seen_at_ms = 0  # when there was last a sign of a consumer
        self._quiet_ms = float(QUIET_MS)  # how long without one is nothing special
        self._step_ms: float | None = None  # from one position to the next

    def observe(self, numbers: LineNumbers) -> None:
        """Learns from a look. Looks come in order, at any distances; of two at one instant the later counts. Another
        generation is another queue: everything begins anew."""
        self._now, last = numbers, self._last
        if last is None or numbers.generation != last.generation:
            self._forget()
            self._seen_at_ms = numbers.at_ms
        elif numbers.at_ms == last.at_ms:
            return
        elif not last.at_ms < numbers.at_ms <= last.at_ms + LONGEST_GAP_MS:
            self._skip(numbers.at_ms)
        else:
            self._learn(last, numbers)
        self._last = numbers
        if not numbers.is_paused:
            self._slots.see(numbers, max(WINDOW_RESTS * self._slots.rest_ms(self._lease.mean_ms() or 0.0), STALE_MS))
        self._note_consumers(last, numbers)
        self._step_ms = self._step_of(numbers)
        if self._step_ms and numbers.length:
            self._margins.place(numbers, self._step_ms)

    def estimate(self, position: int) -> Eta | None:
        """How long the message at this position in the line waits until it is leased; length + 1 for one that would be
        put now. None if there is no basis: nothing was seen yet, it is paused, there is no consumer, it may be held
        back for a poll, or too little has happened; and for position 0, which does not wait."""
        numbers = self._now
        if numbers is None or position < 1 or numbers.is_paused:
            return None
        slots = _free_slots(numbers)
        free = min(slots, numbers.consumers_ready)
        if position <= free:
            return Eta(0, STALE_MS)
        if slots and numbers.consumers_awaited and numbers.length <= numbers.consumers_waiting:
            return None  # a poll may come at once, or at its poll_max
        return _eta(self._margins, position, self._step_ms, STALE_MS if free else 0)

    def estimate_slot(self, position: int) -> Eta | None:
        """How long the consumer at this position in the consumer line waits until it is served, if everybody takes one
        message at a time. The basis is how fast messages left the line while consumers stood in theirs, whatever they
        stood for: messages or a free slot. None if fewer than a few did so, while it is paused, and for position 0."""
        numbers = self._now
        if numbers is None or position < 1 or numbers.is_paused:
            return None
        free = min(_free_slots(numbers), numbers.consumers_waiting, numbers.length)
        if position <= free:
            return Eta(0, STALE_MS)
        step_ms = self._grant.mean_ms() if self._grant.events >= MIN_EVENTS else None
        return _eta(self._prior_margins, position, step_ms, STALE_MS if free else 0)

    def _learn(self, last: LineNumbers, numbers: LineNumbers) -> None:
        """What the span between two looks tells. The queue is taken to have been as it was at the first look: looks
        follow changes at once, or each other closely."""
        span_ms = numbers.at_ms - last.at_ms
        departed = max(numbers.departures - last.departures, 0)
        ended = max(departed - (numbers.leased - last.leased), 0)
        self._learn_leases(span_ms * last.leased, ended)
        if last.is_paused:
            self._slots.keep(numbers.at_ms)
        else:
            if last.length:
                moves = departed if numbers.length else min(departed, last.length)
                self._departure.learn(span_ms, moves)
                self._slots.learn(span_ms, last.leased, numbers.limit, departed)
            if last.consumers_waiting:
                served = departed if numbers.consumers_waiting else min(departed, last.consumers_waiting)
                self._grant.learn(span_ms, served)
        fading = math.exp(-departed / FADING_RETURNS)
        self._new = self._new * fading + min(max(numbers.head - last.head, 0), departed)
        self._departed = self._departed * fading + departed
        self._margins.resolve(last, numbers)
        if numbers.is_paused or not numbers.length:
            self._margins.clear()

    def _learn_leases(self, leased_ms: int, ended: int) -> None:
        """So many ended. Those that began and ended between two looks count with the time of those that were seen; but
        not those of foreign consumers, who hold none."""
        self._unseen_count += ended
        if leased_ms:
            self._lease.learn(leased_ms, self._unseen_count)
            self._unseen_count = 0
        else:
            self._unseen_count = min(self._unseen_count, FADING_SHARE) if self._slots.are_known else 0

    def _skip(self, at_ms: int) -> None:
        """Too long between two looks, or the store's clock went back: things may well be different now."""
        for pace in (self._lease, self._departure, self._grant):
            pace.doubt(0.5)
        self._unseen_count = 0
        self._margins.clear()
        self._slots.keep(at_ms)
        self._seen_at_ms = min(self._seen_at_ms, at_ms)  # not later than now; the gap itself shows nobody

    def _note_consumers(self, last: LineNumbers | None, numbers: LineNumbers) -> None:
        is_moving = last is not None and numbers.departures != last.departures
        if is_moving or numbers.leased or numbers.consumers_ready or numbers.is_paused or not numbers.length:
            self._seen_at_ms = numbers.at_ms
            self._quiet_ms = max(QUIET_MS, QUIET_PACES * (self._departure.mean_ms() or 0.0))

    def _step_of(self, numbers: LineNumbers) -> float | None:
        """How long it takes to move up by one position. None: no basis."""
        if numbers.at_ms - self._seen_at_ms > self._quiet_ms:
            return None
        busy = self._slots.busy(numbers.limit)
        step_ms = None
        if busy and self._lease.events >= MIN_EVENTS:
            step_ms = (self._lease.mean_ms() or 0.0) / busy
        elif self._departure.events >= MIN_EVENTS:  # consumers who hold no lease: foreign ones, or between two looks
            step_ms = self._departure.mean_ms()
        if step_ms is None or not self._departed:
            return step_ms
        return step_ms / max(self._new / self._departed, 0.1)  # those that come back ahead leave again


def _free_slots(numbers: LineNumbers) -> float:
    """How many more leases the limit leaves room for."""
    return max(numbers.limit - numbers.leased, 0) if numbers.limit else math.inf


def _median_ms(position: int, step_ms: float) -> float:
    return (position - MEDIAN_STEPS) * step_ms * MEDIAN_OF_MEAN


def _eta(margins: _Margins, position: int, step_ms: float | None, least_p90_ms: int) -> Eta | None:
    if step_ms is None:
        return None
    p50_ms, p90_ms = _median_ms(position, step_ms), margins.p90_of(position, step_ms)
    return Eta(round(min(p50_ms, MAX_MS)), round(min(max(p90_ms, least_p90_ms), MAX_MS)))
