"""How much of an RPC's deadline store calls and waiting may use, so that the answer still arrives."""

from __future__ import annotations

from typing import Any

from grpc.aio import ServicerContext

from headwayd.domain.limits import STORE_BUDGET_S

_SMALLEST_BUDGET_S = 0.02  # a call whose time is nearly over still gets one honest try

# gRPC sends a timeout in three digits and rounds it up: an hour may arrive as 3,610 s.
_ROUNDED_UP = 1.01

# Kept for the way back: a share of what is left, because a busy machine needs more than a fixed few milliseconds.
_MARGIN_SHARE = 0.1
_SMALLEST_ANSWER_MARGIN_S = 0.05
_SMALLEST_WAIT_MARGIN_S = 0.1  # an answer with nothing in it looks at the store once more
_SMALLEST_LOOK_S = 0.09  # and has a little less time for that
_LOOK_SHARE = 0.8
_LARGEST_WAIT_MARGIN_S = STORE_BUDGET_S  # more cannot be needed after a wait


def store_budget_s(context: ServicerContext[Any, Any]) -> float:
    """The seconds that the store calls of this RPC may take in all."""
    remaining = _remaining_s(context)
    if remaining is None:
        return STORE_BUDGET_S
    margin = _margin_s(remaining, _SMALLEST_ANSWER_MARGIN_S)
    return max(min(remaining - margin, STORE_BUDGET_S), _SMALLEST_BUDGET_S)


def wait_within_deadline_ms(wait_ms: int, context: ServicerContext[Any, Any]) -> int:
    """`wait_ms`, cut so that an answer after the whole wait still arrives before the RPC's deadline."""
    remaining = _remaining_s(context)
    if remaining is None:
        return wait_ms
    margin = min(_margin_s(remaining, _SMALLEST_WAIT_MARGIN_S), _LARGEST_WAIT_MARGIN_S)
    return max(min(wait_ms, int((remaining - margin) * 1_000)), 0)


def look_after_wait_ms(wait_ms: int, context: ServicerContext[Any, Any]) -> int:
    """What one look at the store may take after a wait of `wait_ms` that brought nothing."""
    remaining = _remaining_s(context)
    budget_s = STORE_BUDGET_S
    if remaining is not None:
        budget_s = min((remaining - wait_ms / 1_000) * _LOOK_SHARE, budget_s)
    return int(max(budget_s, _SMALLEST_LOOK_S) * 1_000)


def _margin_s(remaining_s: float, smallest_s: float) -> float:
    return max(remaining_s * _MARGIN_SHARE, smallest_s)


def _remaining_s(context: ServicerContext[Any, Any]) -> float | None:
    """None if the caller set no deadline, which the type stubs do not know."""
    remaining: float | None = context.time_remaining()
    return None if remaining is None else remaining / _ROUNDED_UP
