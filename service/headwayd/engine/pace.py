"""How long something takes of late, on average: learned from spans of time and how often it happened in each. Knows no
clock.

A rate changes at any moment and nobody tells, so no memory of a fixed length is right: a long one is late, a short one
never calm. This one weighs guesses of when the rate changed last, by how well each would have foretold what came since
(Adams and MacKay, "Bayesian Online Changepoint Detection", arXiv:0710.3742). What is counted is taken to be Poisson
distributed with a rate that is Gamma distributed; both sums that a guess needs are kept with it. What comes in clumps,
as leases that are settled together, is evidence as often as a clump comes (quasi-likelihood; Wedderburn 1974): else the
quiet before each refutes what is known, and the clump then what was guessed in its place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

EVENTS_TO_A_CHANGE = 1_000  # how many events lie between two changes, before any evidence
MOST_EVENTS = 2_000  # a guess remembers no more than about so many; what is older fades
MOST_CLUMPS = 20  # the same of events that come in clumps, if these are more
MOST_GUESSES = 16
COUNTS_TO_A_SCATTER = 20  # counts of some events: how far back it is remembered how large the clumps are
EVENTS_TO_A_GUESS = 4  # changes are looked for in steps of so many events, or clumps
# How much each event counts as evidence of a change: real work is less even than Poisson's, and would look like change.
EVIDENCE = 0.7


@dataclass(slots=True)
class _Guess:
    """The rate is what it is since `begun` (a number of events); since then `span_ms` of time brought `events`, which
    includes one imagined clump at the former pace."""

    log_weight: float
    events: float
    span_ms: float
    begun: int

    def learn(self, span_ms: int, events: int, clump: float) -> None:
        all_ms, before, new = self.span_ms + span_ms, self.events / clump, events / clump
        likelihood = before * math.log(self.span_ms / all_ms)
        if events:
            likelihood += math.lgamma(before + new) - math.lgamma(before) + new * math.log(span_ms / all_ms)
        self.log_weight += EVIDENCE * likelihood
        self.events, self.span_ms = self.events + events, all_ms
        most = max(MOST_EVENTS, MOST_CLUMPS * clump)
        if self.events > most:
            self.span_ms *= most / self.events
            self.events = most


@dataclass(slots=True)
class _Scatter:
    """How far counts lay from what was expected, and what that was; both fade."""

    squares: float
    expected: float

    def learn(self, events: int, expected: float) -> None:
        fading = math.exp(-1 / COUNTS_TO_A_SCATTER) if events else 1.0
        self.squares = (self.squares + (events - expected) ** 2) * fading
        self.expected = (self.expected + expected) * fading

    @property
    def clump(self) -> float:
        """How many events come at a time: where they come one by one the counts' variance is their mean."""
        return max(self.squares / self.expected, 1.0)


class Pace:
    """The mean time that one event takes. O(1) in time and memory."""

    def __init__(self) -> None:
        self.events = 0  # seen so far
        self._span_ms = self._faded_events = 0.0  # of the last few hundred events, faded
        self._scatter = _Scatter(1.0, 1.0)
        self._guesses: list[_Guess] = []
        self._guessed_at = 0

    def mean_ms(self) -> float | None:
        """None before the first event."""
        if not self._guesses:
            return None
        weights = [math.exp(guess.log_weight) for guess in self._guesses]
        logs = [math.log(guess.span_ms / guess.events) for guess in self._guesses]
        return math.exp(sum(map(lambda weight, log: weight * log, weights, logs)) / sum(weights))

    def learn(self, span_ms: int, events: int) -> None:
        """In a span of time there were so many events. A span of nothing teaches nothing."""
        if span_ms <= 0:
            return
        mean_ms = self.mean_ms()
        if mean_ms is not None:
            self._scatter.learn(events, span_ms / mean_ms)
        elif events:  # the first may be a clump
            self._scatter = _Scatter(events**2, events)
        clump = self._scatter.clump
        fading = math.exp(-events / max(EVENTS_TO_A_CHANGE, MOST_CLUMPS * clump))
        self._span_ms = self._span_ms * fading + span_ms
        self._faded_events = self._faded_events * fading + events
        self.events += events
        if not self.events:
            return
        for guess in self._guesses:
            guess.learn(span_ms, events, clump)
        most = max((guess.log_weight for guess in self._guesses), default=0.0)
        for guess in self._guesses:
            guess.log_weight -= most  # the best has 0 again: nothing runs out of floating point numbers
        passed = self.events - self._guessed_at
        if not self._guesses or passed >= EVENTS_TO_A_GUESS * clump:
            self.doubt(min(passed / clump / EVENTS_TO_A_CHANGE, 0.5))

    def doubt(self, probability: float) -> None:
        """With this probability everything is different from now on."""
        if not self.events:
            return
        total = math.log(sum(math.exp(guess.log_weight) for guess in self._guesses) or 1.0)
        for guess in self._guesses:
            guess.log_weight += math.log1p(-probability)
        clump, former_ms = self._scatter.clump, self._span_ms / self._faded_events
        self._guesses.append(_Guess(total + math.log(probability), clump, clump * former_ms, self.events))
        self._guessed_at = self.events
        if len(self._guesses) > MOST_GUESSES:
            self._merge()

    def _merge(self) -> None:
        """Makes one guess of the two neighbours whose ages differ least, by ratio: old changes need no exact date."""
        ages = [self.events - guess.begun + 1 for guess in self._guesses]
        at = max(range(len(ages) - 2), key=lambda index: ages[index + 1] / ages[index])
        better, worse = sorted(self._guesses[at : at + 2], key=lambda guess: -guess.log_weight)
        better.log_weight += math.log1p(math.exp(worse.log_weight - better.log_weight))
        self._guesses[at : at + 2] = [better]
