"""The numbers of this process: what it did since it started, by queue where that makes sense.

Plain numbers, because they are counted where calls are served. A queue has numbers of its own as long as there are not
too many such queues; the others share one set, under a name of their own. So the numbers are bounded however many
queues there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from headwayd.domain.errors import Reason
from headwayd.domain.histograms import Histogram

# What stands for all queues without numbers of their own. A queue of this very name never has any.
OTHERS = "(others)"
# The code of calls that met a defect. How many there are is told from the start: a series that is born by the first
# ones has not risen to whoever looks at its increase.
DEFECT = "INTERNAL"

# In seconds, but for the last two.
SPAN_BOUNDS = (0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0, 1_800.0, 7_200.0)
CALL_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
STORE_BOUNDS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
LAG_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
RATIO_BOUNDS = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)
TOGETHER_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)

# Refused for these, a Put shows that its queue exists.
_OF_A_QUEUE = frozenset({Reason.QUEUE_FULL, Reason.QUEUE_CLOSED, Reason.DUPLICATE_MESSAGE, Reason.ROLE_IN_USE})


class QueueCounts:
    """The numbers of one queue, as far as this process moved its messages."""

    __slots__ = ("deduplicated", "delivered", "put", "redelivered", "refused", "settled", "wait", "work")

    def __init__(self) -> None:
        self.put = 0
        self.delivered = 0
        self.redelivered = 0
        self.deduplicated = 0
        self.settled: dict[str, int] = {}  # by how
        self.refused: dict[str, int] = {}  # by reason
        self.wait = Histogram(SPAN_BOUNDS)  # from put to first lease
        self.work = Histogram(SPAN_BOUNDS)  # from lease to ack, where both came here


class Counts:
    """All numbers of this process. At most `most_queues` queues have their own."""

    def __init__(self, *, most_queues: int) -> None:
        self._most_queues = most_queues
        self._queues: dict[str, QueueCounts] = {}
        self._others = QueueCounts()
        self.released: dict[str, int] = {}  # leases given back for callers who had gone, by cause
        self.position_lag = Histogram(LAG_BOUNDS)
        self.eta_error = Histogram(RATIO_BOUNDS)
        self.together = Histogram(TOGETHER_BOUNDS)
        self.loop_lag = Histogram(LAG_BOUNDS)
        self.store: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(STORE_BOUNDS))  # by script
        self.calls: dict[tuple[str, str], int] = {}  # by method and code
        self.call_seconds: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(CALL_BOUNDS))  # by method
        self.stream_count = 0  # open now

    def of(self, queue: str) -> QueueCounts:
        """The numbers of a queue that exists. Its own, from now on, if there is room for that."""
        found = self._queues.get(queue)
        if found is None:
            found = self._others
            if len(self._queues) < self._most_queues and queue != OTHERS:
                found = self._queues[queue] = QueueCounts()
        return found

    def of_known(self, queue: str) -> QueueCounts:
        """The same for what may be no queue: a made-up name never gets numbers of its own."""
        return self._queues.get(queue, self._others)

    @property
    def own(self) -> Mapping[str, QueueCounts]:
        """The queues that have their own."""
        return self._queues

    @property
    def others(self) -> QueueCounts:
        """What all the rest share."""
        return self._others

    def forget(self, queue: str) -> None:
        """The queue is no more: another may have numbers of its own."""
        self._queues.pop(queue, None)

    def note_refused(self, queue: str, reason: Reason, number: int) -> None:
        """So many messages were not put."""
        counts = self.of(queue) if reason in _OF_A_QUEUE else self.of_known(queue)
        add(counts.refused, reason.name, number)

    def note_store(self, script: str, seconds: float) -> None:
        """The store was asked, and has answered or failed after so long."""
        self.store[script].note(seconds)

    def note_call(self, method: str, code: str) -> None:
        """A call has ended so."""
        key = (method, code)
        self.calls[key] = self.calls.get(key, 0) + 1


def add(counts: dict[str, int], key: str, number: int = 1) -> None:
    """So many more of that kind."""
    counts[key] = counts.get(key, 0) + number
