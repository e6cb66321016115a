"""What is learnt about how long one waits: one estimator for each watched queue, which outlives its last watch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from headwayd.domain.places import LineNumbers
from headwayd.domain.watching import Eta

_MOST_KEPT = 1_000
_OVERTAKEN_MS = 2_000  # so much older may a look be that the last has overtaken: about what a look may take


class Estimator(Protocol):
    """Learns from a queue's numbers how long one waits."""

    def observe(self, numbers: LineNumbers) -> None:
        """What a look told. Looks come in the order of their instants, unless the store's clock went back."""
        ...

    def estimate(self, position: int) -> Eta | None:
        """For this position; None if there is no basis."""
        ...

    def estimate_slot(self, position: int) -> Eta | None:
        """For this position in the consumer line; None if there is no basis."""
        ...


class NoEstimator:
    """Knows nothing, and says so."""

    def observe(self, numbers: LineNumbers) -> None:
        """Learns nothing."""

    def estimate(self, position: int) -> Eta | None:  # noqa: ARG002 - the same for each
        """No basis."""
        return None

    def estimate_slot(self, position: int) -> Eta | None:  # noqa: ARG002 - the same for each
        """No basis."""
        return None


class InOrder:
    """An estimator that several readers feed: a look that the last has overtaken is not passed on. One that is much
    older is: then the store's clock went back."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator
        self._last: LineNumbers | None = None

    def observe(self, numbers: LineNumbers) -> None:
        """What a look told, if it is news."""
        last = self._last
        is_same = last is not None and last.generation == numbers.generation
        if last is not None and is_same and 0 <= last.at_ms - numbers.at_ms <= _OVERTAKEN_MS:
            return
        self._last = numbers
        self._estimator.observe(numbers)

    def estimate(self, position: int) -> Eta | None:
        """For this position; None if there is no basis."""
        return self._estimator.estimate(position)

    def estimate_slot(self, position: int) -> Eta | None:
        """For this position in the consumer line; None if there is no basis."""
        return self._estimator.estimate_slot(position)


class Estimates:
    """The estimators of this process, by queue; the one that nobody asked for longest is forgotten first."""

    def __init__(self, make: Callable[[], Estimator]) -> None:
        self._make = make
        self._kept: OrderedDict[str, Estimator] = OrderedDict()

    def of(self, queue: str) -> Estimator:
        """The queue's estimator."""
        estimator = self._kept.get(queue)
        if estimator is None:
            estimator = self._kept[queue] = InOrder(self._make())
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(queue)
        return estimator
