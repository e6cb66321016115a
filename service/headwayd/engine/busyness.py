"""How busy the service is, as those who wait feel it: by how long the store's answers take to come through."""

from __future__ import annotations

_IDLE_S = 0.02  # an answer that takes no longer shows nobody busy
_BUSIEST_S = 0.5
_SHARE = 0.1  # of the newest answer in the mean


class Busyness:
    """A decaying mean over answers, as a number from 0 (idle) to 1."""

    def __init__(self) -> None:
        self._mean_s = 0.0

    def note(self, seconds: float) -> None:
        """One answer took so long."""
        self._mean_s += _SHARE * (seconds - self._mean_s)

    @property
    def value(self) -> float:
        """From 0 to 1."""
        return min(max(self._mean_s - _IDLE_S, 0.0) / (_BUSIEST_S - _IDLE_S), 1.0)
