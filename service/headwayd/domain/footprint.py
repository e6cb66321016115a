"""What a process may come to need in memory by its limits, and which limits fit into what it has.

The figures are what one of each was measured to take, rounded up (docs/measurements.md). Limits are promises: were all
of them reached at once, the process should still live.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwayd.domain.limits import Limits

_KIB = 1024
_MIB = 1024 * _KIB

# The interpreter, gRPC, the connections to the store, and what is remembered of queues.
BASE_BYTES = 128 * _MIB
RUNNING_CALL_BYTES = 32 * _KIB  # a stream that watches; a call that waits takes less
# Of a stream that watches many messages, each: 1.1 to 1.6, its id included; 2.3 if that is long and of wide characters.
WATCHED_ID_BYTES = 2 * _KIB
PENDING_CALL_BYTES = 20 * _KIB
CONNECTION_BYTES = 28 * _KIB
HTTP_CONNECTION_BYTES = 32 * _KIB  # idle 9; with most of a head 19; and its share of what comes in at a time
# A large request is there as it came, as the messages in it, and as the command to the store.
COPIES = 3
# Beside its bytes each message in a request is an object of the schema and one of ours, and what became of it is again
# two: so much, as COPIES counts it. Small messages are mostly that, and replies that nobody reads are nothing else.
MESSAGE_BYTES = 170

# What a call may send before it is read: HTTP/2's own least, and more than a batch of large messages. All that send as
# much as they may, and are not read, take this share of what the limits leave.
LEAST_WINDOW_BYTES, _MOST_WINDOW_BYTES, _WINDOW_SHARE = 65_535, _MIB, 0.25

# Of what is left beside the base.
_RUNNING_SHARE, _PENDING_SHARE, _CONNECTION_SHARE, _HTTP_SHARE, _REQUEST_SHARE = 0.4, 0.2, 0.1, 0.05, 0.25
_FULL = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How much of everything one process takes at a time."""

    max_running_calls: int = _FULL.max_running_calls
    max_pending_calls: int = _FULL.max_pending_calls
    max_connections: int = _FULL.max_connections
    max_http_connections: int = 4_000
    max_running_bytes: int = _FULL.max_running_bytes
    receive_window: int = _MOST_WINDOW_BYTES

    @property
    def most_bytes(self) -> int:
        """What a process needs in which all of this is reached, but for what has come and is not read."""
        return (
            BASE_BYTES
            + self.max_running_calls * RUNNING_CALL_BYTES
            + self.max_pending_calls * PENDING_CALL_BYTES
            + self.max_connections * CONNECTION_BYTES
            + self.max_http_connections * HTTP_CONNECTION_BYTES
            + self.max_running_bytes * COPIES
        )


def capacity_within(memory_bytes: int) -> Capacity:
    """The most that fits into so much memory: the defaults where it is ample, a share for each where it is not."""
    full = Capacity()
    free = max(memory_bytes - BASE_BYTES, 0)
    return Capacity(
        max_running_calls=min(full.max_running_calls, int(free * _RUNNING_SHARE) // RUNNING_CALL_BYTES),
        max_pending_calls=min(full.max_pending_calls, int(free * _PENDING_SHARE) // PENDING_CALL_BYTES),
        max_connections=min(full.max_connections, int(free * _CONNECTION_SHARE) // CONNECTION_BYTES),
        max_http_connections=min(full.max_http_connections, int(free * _HTTP_SHARE) // HTTP_CONNECTION_BYTES),
        max_running_bytes=min(full.max_running_bytes, int(free * _REQUEST_SHARE) // COPIES),
    )


def window_within(memory_bytes: int, capacity: Capacity) -> int:
    """The bytes that each call and stream may send before they are read, beside all that may be reached."""
    left = max(memory_bytes - capacity.most_bytes, 0)
    calls = capacity.max_running_calls + capacity.max_pending_calls
    return min(max(int(left * _WINDOW_SHARE) // calls, LEAST_WINDOW_BYTES), _MOST_WINDOW_BYTES)
