"""How long to wait before trying again, and after which errors a worker tries again at all."""

import logging
import random
from datetime import timedelta

from headway._errors import (
    HeadwayError,
    InvalidArgument,
    NotFound,
    NotImplementedByService,
    PermissionDenied,
    QueueClosed,
    QueueDrained,
    Unauthenticated,
)

_log = logging.getLogger("headway")

_FIRST_SECONDS = 0.1
_LONGEST_SECONDS = 5.0
_LASTING = (
    NotFound,
    InvalidArgument,
    QueueClosed,
    QueueDrained,
    Unauthenticated,
    PermissionDenied,
    NotImplementedByService,
)


def is_passing(error: HeadwayError) -> bool:
    """The same call may succeed later without anybody changing it: the service is away, busy or paused."""
    return not isinstance(error, _LASTING)


def backoff_seconds(failures: int, retry_after: timedelta | None = None) -> float:
    """The wait after the n-th failure in a row: doubling from 0.1 s to 5 s, with jitter, never before `retry_after`."""
    span = min(_LONGEST_SECONDS, _FIRST_SECONDS * 2.0 ** min(failures - 1, 16))
    asked = retry_after.total_seconds() if retry_after else 0.0
    return max(span * random.uniform(0.5, 1.0), asked)


class Outage:
    """Says once in the log that the service cannot do its part, and once that it can again."""

    def __init__(self, queue_name: str) -> None:
        self._queue_name = queue_name
        self._failure_count = 0

    def pause_seconds(self, error: HeadwayError) -> float:
        """Counts a failure; how long to wait before trying again."""
        self._failure_count += 1
        if self._failure_count == 1:
            _log.warning("queue %r: %s; trying again until it works", self._queue_name, error)
        return backoff_seconds(self._failure_count, error.retry_after)

    def over(self) -> None:
        """Counts a success."""
        if self._failure_count:
            _log.warning("queue %r: it works again", self._queue_name)
        self._failure_count = 0
