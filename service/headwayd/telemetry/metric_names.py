"""Every metric: its name, what it counts, its labels, and how those of several processes are put together.

The only place where they are spelled. docs/metrics.md is made from it; the chart's dashboard and alerts use these
names, so a change of one breaks what others built on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """As Prometheus has them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Together(StrEnum):
    """What several worker processes of one service are as one."""

    SUM = "sum"
    MOST = "most"
    LEAST = "least"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. `is_of_store`: read from the store, the same in every process; all others are each process's own."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    together: Together = Together.SUM
    is_of_store: bool = False


def _counter(name: str, text: str, *labels: str, is_of_store: bool = False) -> Metric:
    return Metric(name=f"headway_{name}_total", kind=Kind.COUNTER, text=text, labels=labels, is_of_store=is_of_store)


def _gauge(
    name: str, text: str, *labels: str, unit: str = "", together: Together = Together.SUM, is_of_store: bool = False
) -> Metric:
    return Metric(
        name=f"headway_{name}",
        kind=Kind.GAUGE,
        text=text,
        labels=labels,
        unit=unit,
        together=together,
        is_of_store=is_of_store,
    )


def _histogram(name: str, text: str, *labels: str, unit: str = "s") -> Metric:
    return Metric(name=f"headway_{name}", kind=Kind.HISTOGRAM, text=text, labels=labels, unit=unit)


# `namespace` is what Kubernetes has, and a scrape there adds it.
OF_QUEUE = ("queue_namespace", "queue")

# The state of queues.
QUEUE_MESSAGES = _gauge(
    "queue_messages",
    "Messages by state: waiting (the length), leased, delayed, dead.",
    *OF_QUEUE,
    "state",
    is_of_store=True,
)
QUEUE_OLDEST_AGE = _gauge(
    "queue_oldest_age_seconds",
    "How long ago the message at the head was put; 0 if none waits.",
    *OF_QUEUE,
    unit="s",
    is_of_store=True,
)
QUEUE_WAITERS = _gauge(
    "queue_waiters",
    "Who stands in line: consumers, and producers that are blocked by the bound.",
    *OF_QUEUE,
    "line",
    is_of_store=True,
)
QUEUES = _gauge(
    "queues", "Queues that there are; missing while the store takes too long to tell all their names.", is_of_store=True
)
STORE_REACHABLE = _gauge(
    "store_reachable",
    "1 if the store answered when it was asked for the state of queues; else 0, and that state is missing.",
    together=Together.LEAST,
)

# What happens to messages, in this process.
MESSAGES_PUT = _counter("messages_put", "Messages accepted.", *OF_QUEUE)
MESSAGES_DEDUPLICATED = _counter(
    "messages_deduplicated",
    "Messages not accepted anew because their id was known, and KEEP was asked for.",
    *OF_QUEUE,
)
PUTS_REFUSED = _counter("puts_refused", "Messages refused, by the reason of the error.", *OF_QUEUE, "reason")
MESSAGES_DELIVERED = _counter("messages_delivered", "Leases given.", *OF_QUEUE)
MESSAGES_REDELIVERED = _counter("messages_redelivered", "Leases given on messages that had failed before.", *OF_QUEUE)
MESSAGES_SETTLED = _counter(
    "messages_settled",
    "Leases that callers settled, by how: acked, already_acked, released, delayed, dead, stale, gone.",
    *OF_QUEUE,
    "how",
)
MESSAGES_ACKED = _counter(
    "messages_acked",
    "Messages acked, through whichever process; of queues with series of their own.",
    *OF_QUEUE,
    is_of_store=True,
)
LEASES_RELEASED = _counter(
    "leases_released",
    "Leases given back for callers who had gone: call_gone (a Get that was cancelled), stream_ended.",
    "cause",
)
LEASES_LAPSED = _counter(
    "leases_lapsed",
    "Leases whose time ran out before anybody settled them; of queues with series of their own.",
    *OF_QUEUE,
    is_of_store=True,
)
WAIT = _histogram("wait_seconds", "From put to the first lease.", *OF_QUEUE)
WORK = _histogram(
    "work_seconds", "From lease to ack, of those that were leased and acked through the same process.", *OF_QUEUE
)

# Who watches, and how true it is what they are told.
WATCHERS = _gauge("watchers", "Streams that watch messages, producers or queues.")
STREAMS = _gauge("streams", "Streams that are open, of all kinds.")
POSITION_LAG = _histogram("position_lag_seconds", "How old a position is when it is told.")
ETA_ERROR = _histogram(
    "eta_error_ratio",
    "How long a wait was, as a multiple of its estimated p50, of estimates put to the test; 1 is exact.",
    unit="",
)

# How the service does.
STORE_SECONDS = _histogram(
    "store_seconds", "From asking the store to its answer, waiting for its turn included.", "script"
)
STORE_TOGETHER = _histogram("store_together", "Calls that went to the store together, in one step.", unit="calls")
LOOP_LAG = _histogram("event_loop_lag_seconds", "How late the event loop comes to what is due.")
CALLS = _counter("calls", "Calls and streams that ended, by their status code.", "method", "code")
CALL_SECONDS = _histogram("call_seconds", "How long calls took, waiting included; streams not counted.", "method")
FLOOD_KEPT_OUT = _gauge(
    "flood_kept_out",
    "1 while a flood lasts and connections may have few calls at a time because of it, as `flood_calls` says.",
    together=Together.MOST,
)
READY = _gauge(
    "ready",
    "1 if this process wants calls and its store can be counted on, as readiness tells.",
    together=Together.LEAST,
)
BUILD_INFO = _gauge("build_info", "1, labelled with the version.", "version", together=Together.MOST)

ALL = tuple(each for each in dict(globals()).values() if isinstance(each, Metric))


def markdown() -> str:
    """The table of docs/metrics.md."""
    rows = ["| metric | kind | labels | of | meaning |", "|---|---|---|---|---|"]
    for metric in ALL:
        labels = " ".join(f"`{label}`" for label in metric.labels)
        source = "store" if metric.is_of_store else "process"
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {source} | {metric.text} |")
    return "\n".join(rows) + "\n"
