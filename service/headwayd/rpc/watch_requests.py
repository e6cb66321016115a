"""From requests to what is watched, and to what those who watch are told: checked in full."""

from __future__ import annotations

from headway.v1 import message_pb2, queue_service_pb2
from headwayd.domain.footprint import RUNNING_CALL_BYTES, WATCHED_ID_BYTES
from headwayd.domain.limits import HOUR_MS, MAX_ID_BYTES, MAX_NOTE_BYTES, MAX_WATCHED_IDS, SECOND_MS, Limits
from headwayd.domain.places import Progress
from headwayd.domain.watching import WatchOrder
from headwayd.rpc.room import LARGE_BYTES
from headwayd.rpc.validation import Checks

_SHORTEST_INTERVAL_MS = 100
_INTERVAL_MS = 1 * SECOND_MS
_LONGEST_INTERVAL_MS = 1 * HOUR_MS
_IDS_OF_A_STREAM = RUNNING_CALL_BYTES // WATCHED_ID_BYTES
_MOST_OF_AN_ID = 3 + MAX_ID_BYTES  # bytes of a request: its field and its length, and itself


def stream_count(request: queue_service_pb2.WatchPositionRequest) -> int:
    """As how many streams one counts that watches these messages: each takes memory of its own."""
    return 1 + min(len(request.messages.ids), MAX_WATCHED_IDS) // _IDS_OF_A_STREAM


def kept_bytes(size: int, count: int) -> int:
    """What a request of a stream that counts as so many takes of the room for large ones, as long as the stream lasts.

    The ids for which it counts as more than one take none: their memory is that of streams, and batches would wait for
    that room as long as somebody watches.
    """
    kept = size - (count - 1) * _IDS_OF_A_STREAM * _MOST_OF_AN_ID
    return kept if kept >= LARGE_BYTES else 0


def watch_order(request: queue_service_pb2.WatchPositionRequest, limits: Limits) -> WatchOrder:
    """The messages that WatchPosition watches."""
    checks = Checks(limits)
    if not request.HasField("subject"):
        checks.invalid("subject", "is missing")
    ids = tuple(request.messages.ids)
    if len(ids) > MAX_WATCHED_IDS:
        checks.too_large("messages.ids", "items", size=len(ids), limit=MAX_WATCHED_IDS)
    elif request.HasField("messages"):
        if not ids:
            checks.invalid("messages.ids", "is empty")
        first_at: dict[str, int] = {}
        for index, message_id in enumerate(ids):
            path = f"messages.ids[{index}]"
            checks.label(path, message_id, max_bytes=MAX_ID_BYTES)
            if first_at.setdefault(message_id, index) != index:
                checks.invalid(path, f"is the same as messages.ids[{first_at[message_id]}]")
    checks.finish()
    return WatchOrder(queue=request.queue, message_ids=ids, is_attended=request.messages.attended)


def interval_ms(request: queue_service_pb2.WatchQueueRequest, limits: Limits) -> int:
    """The shortest span between two messages of WatchQueue."""
    checks = Checks(limits)
    span_ms = checks.span_ms(
        request,
        "interval",
        "interval",
        lowest_ms=_SHORTEST_INTERVAL_MS,
        highest_ms=_LONGEST_INTERVAL_MS,
        default_ms=_INTERVAL_MS,
    )
    checks.finish()
    return span_ms


def checked_progress(progress: message_pb2.Progress, checks: Checks) -> Progress:
    """How far Extend says that the work has come."""
    fraction = checks.number("progress.fraction", progress.fraction, lowest=0.0, highest=1.0, default=0.0)
    return Progress(fraction, checks.text("progress.note", progress.note, max_bytes=MAX_NOTE_BYTES))
