"""What those who scale workers go by. A paused queue has nothing for workers but what they hold already."""

from __future__ import annotations

from enum import StrEnum

from headwayd.domain.model import Queue
from headwayd.domain.watching import Eta

_MS_PER_S = 1_000


class Metric(StrEnum):
    """What can be brought to a target."""

    DEPTH = "depth"  # messages that wait or are worked on
    OLDEST_AGE = "oldest_age"  # seconds since the message at the head was put
    PREDICTED_WAIT = "predicted_wait"  # seconds; of ten messages put now, nine are expected to wait no longer


def is_active(queue: Queue) -> bool:
    """Whether there is anything for a worker to do, or one is at it."""
    return depth(queue) > 0


def depth(queue: Queue) -> int:
    """What is worked on counts: or workers would be taken away for having begun."""
    return queue.counts.leased + (0 if queue.is_paused else queue.counts.length)


def oldest_age_s(queue: Queue) -> float:
    """0 if nothing waits."""
    if queue.is_paused or queue.counts.oldest_age_ms is None:
        return 0.0
    return queue.counts.oldest_age_ms / _MS_PER_S


def predicted_wait_s(queue: Queue, eta: Eta | None) -> float:
    """Without a basis for an estimate, how long the one at the head has waited already: it cannot be less."""
    if queue.is_paused:
        return 0.0
    return oldest_age_s(queue) if eta is None else eta.p90_ms / _MS_PER_S
