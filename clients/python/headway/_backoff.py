"""How long to wait before trying again, and after which errors a worker tries again at all."""

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
