"""Tells in the log that the service cannot do its part, and that it can again."""

from headway.core.connecting import log, pause_seconds
from headway.core.error import HeadwayError


class Outage:
    """Counts the failures in a row of what is tried until it works; says once that it fails, and once that it works."""

    def __init__(self, queue_name: str) -> None:
        self._queue_name = queue_name
        self._failure_count = 0

    def pause_seconds(self, error: HeadwayError) -> float:
        """Counts a failure; how long to wait before trying again."""
        self._failure_count += 1
        return pause_seconds(self._queue_name, self._failure_count, error)

    def over(self) -> None:
        """Counts a success."""
        if self._failure_count:
            log.warning("queue %r: it works again", self._queue_name)
        self._failure_count = 0
