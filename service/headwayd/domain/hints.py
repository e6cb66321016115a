"""How often it is worth asking: poll hints for a place in line, after Gnutella's X-Queue.

Whoever polls asks again no earlier than `poll_min_ms` and no later than `poll_max_ms` after the answer was delivered.
The window between the two is wide enough that its whole seconds (`domain/xqueue.py`) suit every X-Queue client.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwayd.domain.limits import SECOND_MS
from headwayd.domain.model import Policy

# A wholly busy service asks everyone to come this many times less often.
BUSIEST_STRETCH = 4.0

# X-Queue clients want 8 s between the two hints. Rounding inwards to whole seconds takes up to a second at each end.
LEAST_WINDOW_MS = 10 * SECOND_MS

# The longest silence that X-Queue clients can be asked for; nothing here ever promises a longer one.
LONGEST_POLL_MAX_MS = 607 * SECOND_MS
LONGEST_POLL_MIN_MS = LONGEST_POLL_MAX_MS - LEAST_WINDOW_MS


@dataclass(frozen=True, slots=True)
class PollHints:
    """When to ask again, in milliseconds after the answer was delivered: not before `poll_min_ms`, and not after
    `poll_max_ms`, the longest silence that keeps a place."""

    poll_min_ms: int
    poll_max_ms: int


def stretch(busy: float) -> float:
    """What poll_min is multiplied by: from 1 for an idle service (`busy` 0) evenly up to `BUSIEST_STRETCH` (1). A gauge
    that strays outside is taken at the nearer end; one that is no number, as idle."""
    share = min(busy, 1.0) if busy > 0.0 else 0.0  # NaN is not above 0 either
    return 1.0 + (BUSIEST_STRETCH - 1.0) * share


def poll_hints(policy: Policy, position: int, *, busy: float = 0.0) -> PollHints:
    """The hints for a 1-based position in a line; 0 (not waiting: worked on, or finished) is asked as often as 1.

    poll_min is the policy's base, and its share for each position ahead, stretched by how busy the service is; never
    above the policy's max, busy or not, nor above `LONGEST_POLL_MIN_MS`. poll_max is twice that and at least
    `LEAST_WINDOW_MS` above it, but at most `LONGEST_POLL_MAX_MS`.
    """
    if position < 0:
        raise ValueError(f"no such position: {position}")
    ahead = max(position - 1, 0)
    # The maximum first: a position may be too large for a float.
    wanted_ms = min(policy.poll_base_ms + policy.poll_per_position_ms * ahead, policy.poll_max_ms)
    poll_min_ms = min(round(wanted_ms * stretch(busy)), policy.poll_max_ms, LONGEST_POLL_MIN_MS)
    poll_max_ms = min(poll_min_ms + max(poll_min_ms, LEAST_WINDOW_MS), LONGEST_POLL_MAX_MS)
    return PollHints(poll_min_ms=poll_min_ms, poll_max_ms=poll_max_ms)
