"""From the requests of operators to orders, as `requests` does it for the rest."""

from __future__ import annotations

from headway.v1 import admin_service_pb2
from headwayd.domain import names
from headwayd.domain.limits import (
    DEFAULT_CHECKED_ENTRIES,
    MAX_PAGE_TOKEN_BYTES,
    MAX_REDRIVE_RATE,
    MIN_REDRIVE_RATE,
    Limits,
)
from headwayd.domain.model import RedriveOrder
from headwayd.rpc.requests import checked_page_size
from headwayd.rpc.validation import Checks

_MOST_ENTRIES = 2**52  # Lua's numbers are exact up to here


def most_leased(request: admin_service_pb2.ListLeasedRequest, limits: Limits) -> int:
    """How many messages ListLeased lists at most."""
    checks = Checks(limits)
    most = checks.count("max_messages", request.max_messages, highest=limits.max_batch_messages, default=1)
    checks.finish()
    return most


def dead_page(request: admin_service_pb2.ListDeadRequest, limits: Limits) -> tuple[int, str]:
    """How many messages a page of ListDead holds at most, and where it begins, which the store understands."""
    checks = Checks(limits)
    size = checked_page_size(request, checks)
    token = checks.text("page_token", request.page_token, max_bytes=MAX_PAGE_TOKEN_BYTES)
    checks.finish()
    return size, token


def redrive_order(request: admin_service_pb2.RedriveRequest, limits: Limits) -> RedriveOrder:
    """What Redrive asks for. An id named twice is meant once. Raises NameRefused for the target, too."""
    if request.to_queue:
        names.accept(request.to_queue, field="to_queue")
    checks = Checks(limits)
    ids = checks.message_ids("message_ids", request.message_ids, may_be_empty=True)
    order = RedriveOrder(
        queue=request.queue,
        message_ids=tuple(dict.fromkeys(ids)),
        to_queue="" if request.to_queue == request.queue else request.to_queue,
        rate=checks.number("rate", request.rate, lowest=MIN_REDRIVE_RATE, highest=MAX_REDRIVE_RATE, default=0.0),
    )
    checks.finish()
    return order


def max_entries(request: admin_service_pb2.CheckRequest) -> int:
    """How many entries Check looks at most at."""
    return min(request.max_entries or DEFAULT_CHECKED_ENTRIES, _MOST_ENTRIES)
