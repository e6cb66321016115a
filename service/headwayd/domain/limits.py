"""What the service accepts: the ranges of every number it is given, in one place; and what it grants the store."""

from __future__ import annotations

from dataclasses import dataclass

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

MAX_BOUND = 1_000_000_000
MAX_SLOTS = 1_000_000
MAX_TURNS = 1_000_000
MAX_ATTEMPTS = 1_000_000
MIN_LEASE_MS = 100
MAX_LEASE_MS = 12 * HOUR_MS
MAX_WAIT_MS = HOUR_MS
MAX_DELAY_MS = 366 * DAY_MS
MAX_TIME_TO_LIVE_MS = 366 * DAY_MS
MAX_NAME_BYTES = 200
MAX_ID_BYTES = 200
MAX_ROLE_NAME_BYTES = 200
MAX_CREDIT_MESSAGES = 100_000  # each costs this process some memory while it is outstanding
MAX_ATTEMPT_ID_BYTES = 200
MAX_HEADERS = 64
MAX_HEADER_KEY_BYTES = 128
MAX_HEADER_VALUE_BYTES = 4_096
MAX_REMEMBERED_IDS = 1_000_000  # per queue; beyond it the oldest are forgotten early
MAX_REASON_BYTES = 1_024
MAX_RESULT_BYTES = 4_096
MAX_WATCHED_IDS = 10_000
MAX_NOTE_BYTES = 1_024
MAX_PAGE_SIZE = 1_000
DEFAULT_PAGE_SIZE = 100
MAX_PAGE_TOKEN_BYTES = 256
MIN_REDRIVE_RATE = 0.001
MAX_REDRIVE_RATE = 1_000_000.0
DEFAULT_CHECKED_ENTRIES = 1_000_000
# Requests between `max_request_bytes` and this much above it are read and refused with TOO_LARGE and all its details.
# What is larger still is refused while it comes in, as gRPC does: RESOURCE_EXHAUSTED with a text of its own.
REQUEST_MARGIN_BYTES = 1024 * 1024

# What the store may take of a call, which answers within this when the store is down, and of a step in the background.
STORE_BUDGET_MS = 2 * SECOND_MS
STORE_BUDGET_S = STORE_BUDGET_MS / SECOND_MS


def in_words(span_ms: int) -> str:
    """A span in the largest unit that tells it in whole numbers."""
    for unit_ms, unit in ((DAY_MS, "days"), (HOUR_MS, "h"), (MINUTE_MS, "min"), (SECOND_MS, "s")):
        if span_ms and span_ms % unit_ms == 0:
            return f"{span_ms // unit_ms} {unit}"
    return f"{span_ms} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits that an operator may set. Published by GetServerInfo.

    `max_response_bytes` stays below 4 MiB because that is what stock gRPC clients are ready to receive.
    """

    max_message_bytes: int = 1024 * 1024
    max_batch_messages: int = 1_000
    max_request_bytes: int = 8 * 1024 * 1024
    max_response_bytes: int = 3 * 1024 * 1024
    max_wait_ms: int = MAX_WAIT_MS
    max_lease_ms: int = MAX_LEASE_MS
    max_delay_ms: int = MAX_DELAY_MS
    max_running_calls: int = 20_000
    max_pending_calls: int = 10_000
    max_connections: int = 10_000
    max_running_bytes: int = 256 * 1024 * 1024
    max_streams_per_connection: int = 5_000
    max_metadata_bytes: int = 16 * 1024

    @property
    def max_streams(self) -> int:
        """Streams leave a tenth of what may run to calls: those who watch must not keep out those who work."""
        return self.max_running_calls - self.max_running_calls // 10
